//! Words for the limit of one task: what a caller is told, and the name that nodes count it under.
//!
//! Not the limit itself, which is an account's.

use super::{AccountSpec, Task};
use crate::AccountId;

/// Between an account and a task in the name of their count; stands in no account's id.
const SEPARATOR: char = '/';

/// Longest id of an account with limits of tasks: nodes tell each other names of 256 bytes.
pub const LIMITED_ID_BYTES_MAX: usize = 220;

impl Task {
    /// The task of this name.
    pub fn of_slug(slug: &str) -> Option<Task> {
        Task::ALL.into_iter().find(|task| task.slug() == slug)
    }

    /// Sentence for a caller whose account has used up its requests per minute of this task.
    #[rustfmt::skip] // a table reads as a table
    pub const fn limit_message(self) -> &'static str {
        match self {
            Task::TextGeneration => "the account's requests per minute of the task text-generation are used up: try again later",
            Task::TextClassification => "the account's requests per minute of the task text-classification are used up: try again later",
            Task::TextEmbeddings => "the account's requests per minute of the task text-embeddings are used up: try again later",
            Task::TextToImage => "the account's requests per minute of the task text-to-image are used up: try again later",
            Task::TextToSpeech => "the account's requests per minute of the task text-to-speech are used up: try again later",
            Task::AutomaticSpeechRecognition => "the account's requests per minute of the task automatic-speech-recognition are used up: try again later",
            Task::ImageClassification => "the account's requests per minute of the task image-classification are used up: try again later",
            Task::ImageToText => "the account's requests per minute of the task image-to-text are used up: try again later",
            Task::ImageTextToText => "the account's requests per minute of the task image-text-to-text are used up: try again later",
            Task::ObjectDetection => "the account's requests per minute of the task object-detection are used up: try again later",
            Task::Translation => "the account's requests per minute of the task translation are used up: try again later",
            Task::Summarization => "the account's requests per minute of the task summarization are used up: try again later",
            Task::MultimodalEmbeddings => "the account's requests per minute of the task multimodal-embeddings are used up: try again later",
            Task::DumbPipe => "the account's requests per minute of the task dumb-pipe are used up: try again later",
        }
    }
}

impl AccountSpec {
    /// Name under which nodes count its requests of a task. Nodes of before know no account of that name.
    pub fn count_name(&self, task: Task) -> AccountId {
        let name = format!("{}{SEPARATOR}{}", self.id.as_str(), task.slug());
        AccountId::from(name.as_str())
    }
}

/// Account and task of [`AccountSpec::count_name`]; none of the name of an account.
pub fn counted_task(name: &AccountId) -> Option<(AccountId, Task)> {
    let (account, slug) = name.as_str().rsplit_once(SEPARATOR)?;
    Some((AccountId::from(account), Task::of_slug(slug)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_task_and_a_count_leads_back_to_it() {
        let spec = AccountSpec::anonymous();
        for task in Task::ALL {
            let named = format!("of the task {} are used up", task.slug());
            assert!(task.limit_message().contains(&named), "{named}");
            let name = spec.count_name(task);
            assert_eq!(counted_task(&name), Some((spec.id.clone(), task)));
        }
        assert_eq!(counted_task(&spec.id), None);
        assert_eq!(counted_task(&"acme/unknown".into()), None);
    }
}
