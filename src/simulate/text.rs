//! The simulated words: a response that is the same for the same seed and prompt. Not a language
//! model, and no tokenizer: one token is one word with the space before it.

use fastrand::Rng;

/// The longest response, in tokens: the context length of today's large models. Bounds what one
/// request can make the simulator hold.
const MAX_OUTPUT_TOKENS: u32 = 131_072;

/// After this tag in the last user message, the response repeats the rest.
const ECHO_TAG: &str = "echo:";

const WORDS: [&str; 32] = [
    " a", " batch", " cache", " device", " every", " fair", " gate", " hot", " idle", " job",
    " kernel", " lane", " model", " node", " open", " prompt", " queue", " reply", " slot",
    " token", " under", " vector", " warm", " yields", " and", " before", " or", " the", " to",
    " while", " with", " without",
];

/// Reason why a response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    Length,
}

/// Maximum and natural length of a response, in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextLength {
    /// Length of the text in tokens without any limit of the request.
    pub(super) natural: u32,
    /// The request's `max_tokens`.
    pub(super) max: Option<u32>,
    /// Go on to `max`, whatever `natural` is.
    pub(super) ignore_end: bool,
}

/// A response, cut into tokens.
#[derive(Clone, Debug)]
pub(super) struct SimulatedText {
    text: String,
    /// End of each token in `text`.
    ends: Vec<usize>,
    pub(super) finish: Finish,
}

impl SimulatedText {
    /// The response to `prompt`.
    pub(super) fn answer(seed: u64, prompt: &str, length: TextLength) -> SimulatedText {
        match prompt.split_once(ECHO_TAG) {
            Some((_, rest)) => SimulatedText::echo(rest.trim(), length.max),
            None => SimulatedText::words(seed ^ hash(prompt.as_bytes()), length),
        }
    }

    fn words(seed: u64, length: TextLength) -> SimulatedText {
        let max = length
            .max
            .unwrap_or(MAX_OUTPUT_TOKENS)
            .min(MAX_OUTPUT_TOKENS);
        let count = if length.ignore_end && length.max.is_some() {
            max
        } else {
            length.natural.min(max)
        };
        let mut rng = Rng::with_seed(seed);
        let mut text = String::with_capacity(count as usize * 7);
        let mut ends = Vec::with_capacity(count as usize);
        for index in 0..count {
            let word = WORDS[rng.usize(0..WORDS.len())];
            text.push_str(if index == 0 { word.trim_start() } else { word });
            ends.push(text.len());
        }
        let finish = if count == max {
            Finish::Length
        } else {
            Finish::Stop
        };
        SimulatedText { text, ends, finish }
    }

    fn echo(rest: &str, max: Option<u32>) -> SimulatedText {
        let max = max.unwrap_or(MAX_OUTPUT_TOKENS).min(MAX_OUTPUT_TOKENS) as usize;
        let bytes = rest.as_bytes();
        // A token ends where a space begins; a run of spaces goes with the word after it.
        let starts_gap = |at: &usize| bytes[*at] == b' ' && bytes[at - 1] != b' ';
        let mut ends: Vec<usize> = (1..bytes.len()).filter(starts_gap).take(max).collect();
        if ends.len() < max && !rest.is_empty() {
            ends.push(rest.len());
        }
        let kept = ends.last().copied().unwrap_or(0);
        let finish = if kept < rest.len() {
            Finish::Length
        } else {
            Finish::Stop
        };
        SimulatedText {
            text: rest[..kept].to_owned(),
            ends,
            finish,
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn tokens(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Token `index`, with the space before it.
    pub(super) fn token(&self, index: u32) -> &str {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }
}

/// FNV-1a over eight bytes at a time: stable across releases and cheap on long prompts, which is
/// all that is asked of it.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut state: u64 = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word: [u8; 8] = chunk
            .try_into()
            .expect("chunks_exact(8) yields eight bytes");
        state = (state ^ u64::from_le_bytes(word)).wrapping_mul(PRIME);
        // The product only carries upwards: bring the high half back down.
        state ^= state >> 32;
    }
    for byte in chunks.remainder() {
        state = (state ^ u64::from(*byte)).wrapping_mul(PRIME);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: TextLength = TextLength {
        natural: 5,
        max: None,
        ignore_end: false,
    };

    fn joined(text: &SimulatedText) -> String {
        (0..text.tokens()).map(|index| text.token(index)).collect()
    }

    #[test]
    fn the_same_seed_and_prompt_give_the_same_text() {
        let one = SimulatedText::answer(7, "hello", FREE);
        let two = SimulatedText::answer(7, "hello", FREE);
        assert_eq!(one.as_str(), two.as_str());
        assert_ne!(
            one.as_str(),
            SimulatedText::answer(8, "hello", FREE).as_str()
        );
        assert_eq!(joined(&one), one.as_str());
        assert_eq!((one.tokens(), one.finish), (5, Finish::Stop));
    }

    #[test]
    fn max_tokens_cuts_and_ignoring_the_end_fills_up_to_it() {
        let cut = SimulatedText::answer(
            1,
            "x",
            TextLength {
                max: Some(3),
                ..FREE
            },
        );
        assert_eq!((cut.tokens(), cut.finish), (3, Finish::Length));
        let filled = SimulatedText::answer(
            1,
            "x",
            TextLength {
                max: Some(9),
                ignore_end: true,
                ..FREE
            },
        );
        assert_eq!((filled.tokens(), filled.finish), (9, Finish::Length));
    }

    #[test]
    fn an_echo_is_exact_and_its_tokens_join_to_it() {
        let echo = SimulatedText::answer(1, "please echo:  grüße  an alle ", FREE);
        assert_eq!(echo.as_str(), "grüße  an alle");
        assert_eq!(
            (joined(&echo), echo.tokens()),
            (echo.as_str().to_owned(), 3)
        );
        let cut = SimulatedText::answer(
            1,
            "echo: a b c",
            TextLength {
                max: Some(2),
                ..FREE
            },
        );
        assert_eq!((cut.as_str(), cut.finish), ("a b", Finish::Length));
        assert_eq!(SimulatedText::answer(1, "echo:", FREE).tokens(), 0);
    }
}
