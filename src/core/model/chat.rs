//! `models[].chat`: the template by which messages become a prompt, and thinking before the answer.
//!
//! Prompts are written by `api::chat_template`, not here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Template by which messages become a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChatTemplate {
    /// The server's own.
    #[default]
    Server,
    /// `<|im_start|>role … <|im_end|>`.
    Chatml,
    /// `[INST] <<SYS>> … <</SYS>> … [/INST]`.
    Llama2,
    /// `### Instruction: … ### Response:`.
    Alpaca,
    /// `USER: … ASSISTANT:`.
    Vicuna,
    /// `[INST] … [/INST]`.
    Mistral,
    /// The texts alone, a line break between two of them.
    Raw,
}

/// Thinking before the answer, of models that can be asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Thinking {
    /// As the server does.
    #[default]
    Default,
    /// Asked for.
    On,
    /// Asked not to.
    Off,
}

/// Form in which chats reach the servers of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChatSpec {
    /// Template of the prompt. With any but `server` the gateway writes the prompt and asks for a completion, with
    /// the template's stop strings; clients get a chat response all the same.
    pub template: ChatTemplate,
    /// Sets `chat_template_kwargs.enable_thinking` where the request does not; `default` sends nothing. Not beside
    /// another template than the server's.
    pub thinking: Thinking,
}

impl ChatSpec {
    /// Returns whether chats pass as they are.
    pub fn is_plain(&self) -> bool {
        *self == ChatSpec::default()
    }
}
