//! Names of the files of a split model: `NAME-00001-of-00004.gguf`, as llama.cpp and Hugging Face write them.
//!
//! Looks for no file: it says which names a model's files have.

/// Files of one model at most.
pub const SHARDS_MAX: u64 = 1024;
/// Digits of the numbers.
const DIGITS: usize = 5;
const BETWEEN: &str = "-of-";

/// Name of a file of a model, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardName {
    /// Name without number and extension.
    pub model: String,
    /// Extension in lower case, without its dot; empty without one.
    pub extension: String,
    /// Files of the model.
    pub count: u64,
    /// Extension as written, with its dot.
    ending: String,
    is_split: bool,
}

impl ShardName {
    /// Takes a file's name apart; none where it calls itself one of too many files, or of none.
    pub fn parse(name: &str) -> Option<Self> {
        let (stem, ending) = name.split_at(name.rfind('.').unwrap_or(name.len()));
        let split = numbers(stem);
        let (model, count) = match split {
            Some((model, index, count)) => {
                let is_possible = (1..=SHARDS_MAX).contains(&count) && (1..=count).contains(&index);
                (is_possible.then_some(model)?, count)
            }
            None => (stem, 1),
        };
        Some(ShardName {
            model: model.to_owned(),
            extension: ending.trim_start_matches('.').to_ascii_lowercase(),
            count,
            ending: ending.to_owned(),
            is_split: split.is_some(),
        })
    }

    /// Names of all files of the model, in order.
    pub fn files(&self) -> impl Iterator<Item = String> {
        (1..=self.count).map(move |index| match self.is_split {
            true => format!(
                "{}-{index:05}{BETWEEN}{:05}{}",
                self.model, self.count, self.ending
            ),
            false => format!("{}{}", self.model, self.ending),
        })
    }
}

/// `NAME-00002-of-00004` → `NAME`, 2, 4.
fn numbers(stem: &str) -> Option<(&str, u64, u64)> {
    let (before, count) = stem.rsplit_once(BETWEEN)?;
    let (model, index) = before.rsplit_once('-')?;
    Some((model, number(index)?, number(count)?))
}

fn number(text: &str) -> Option<u64> {
    let is_number = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_file_of_a_split_names_all_of_them() {
        let name = ShardName::parse("Qwen-72B-00002-of-00003.GGUF").unwrap();
        assert_eq!((&*name.model, &*name.extension), ("Qwen-72B", "gguf"));
        let files: Vec<_> = name.files().collect();
        assert_eq!(files[0], "Qwen-72B-00001-of-00003.GGUF");
        assert_eq!(
            (files.len(), &*files[2]),
            (3, "Qwen-72B-00003-of-00003.GGUF")
        );
    }

    #[test]
    fn a_name_without_numbers_is_a_model_of_one_file() {
        for name in [
            "model.gguf",
            "a-1-of-3.gguf",
            "x-0000a-of-00002.gguf",
            "plain",
            "dot.",
            "é-of-.x",
        ] {
            let files: Vec<_> = ShardName::parse(name).unwrap().files().collect();
            assert_eq!(files, [name]);
        }
    }

    #[test]
    fn numbers_that_no_split_has_are_refused() {
        for name in [
            "m-00000-of-00002.gguf",
            "m-00003-of-00002.gguf",
            "m-00001-of-99999.gguf",
        ] {
            assert_eq!(ShardName::parse(name), None, "{name}");
        }
    }
}
