//! The OpenAI APIs whose bodies pass, by name: their paths, and the task of models that serve them.
//!
//! Bodies are read by [`passed`](super::passed).

use crate::model::Task;

/// API whose bodies pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassedApi {
    /// `images/generations`.
    Images,
    /// `audio/speech`.
    Speech,
    /// `audio/transcriptions`, a form with a file.
    Transcriptions,
    /// `audio/translations`, likewise.
    Translations,
    /// `responses`.
    Responses,
    /// `rerank`.
    Rerank,
}

impl PassedApi {
    /// All of them.
    pub const ALL: &[PassedApi] = &[
        PassedApi::Images,
        PassedApi::Speech,
        PassedApi::Transcriptions,
        PassedApi::Translations,
        PassedApi::Responses,
        PassedApi::Rerank,
    ];

    /// Returns the path at servers that have it.
    pub const fn path(self) -> &'static str {
        match self {
            PassedApi::Images => "/v1/images/generations",
            PassedApi::Speech => "/v1/audio/speech",
            PassedApi::Transcriptions => "/v1/audio/transcriptions",
            PassedApi::Translations => "/v1/audio/translations",
            PassedApi::Responses => "/v1/responses",
            PassedApi::Rerank => "/v1/rerank",
        }
    }

    /// Returns the task of models that serve it.
    pub const fn task(self) -> Task {
        match self {
            PassedApi::Images => Task::TextToImage,
            PassedApi::Speech => Task::TextToSpeech,
            PassedApi::Transcriptions | PassedApi::Translations => Task::AutomaticSpeechRecognition,
            PassedApi::Responses => Task::TextGeneration,
            PassedApi::Rerank => Task::TextClassification,
        }
    }

    /// Returns what a model of another task does not do.
    pub const fn lack(self) -> &'static str {
        match self {
            PassedApi::Images => "makes no images",
            PassedApi::Speech => "makes no speech",
            PassedApi::Transcriptions | PassedApi::Translations => "does not write speech down",
            PassedApi::Responses => "does not generate text",
            PassedApi::Rerank => "ranks no documents: its task is not text-classification",
        }
    }

    /// Returns whether tokens are what its requests are about.
    pub const fn is_of_tokens(self) -> bool {
        matches!(self, PassedApi::Responses | PassedApi::Rerank)
    }

    /// Returns whether whole responses have a text that was generated.
    pub const fn has_text(self) -> bool {
        matches!(
            self,
            PassedApi::Responses | PassedApi::Transcriptions | PassedApi::Translations
        )
    }

    /// Returns whether its bodies are forms.
    pub const fn takes_form(self) -> bool {
        matches!(self, PassedApi::Transcriptions | PassedApi::Translations)
    }
}
