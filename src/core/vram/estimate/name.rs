//! Size of a model from words of its name, such as `7b`, `8x7b`, `q4_k_m`, `fp8` and `awq`.
//!
//! A guess for models of which nothing else is known. A name without a size has no figure; one without a word for
//! its weights has 16 bits for each.

/// Parameters that no model exceeds.
const PARAMETERS_MAX: u64 = 1_000_000_000_000_000;

/// Beginning of a word, and bits of a weight in hundredths: means of whole files
/// (<https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md>).
const BITS: &[(&str, u64)] = &[
    ("iq1", 200),
    ("iq2", 270),
    ("iq3", 376),
    ("iq4", 446),
    ("q2", 316),
    ("q3", 400),
    ("q4", 489),
    ("q5", 570),
    ("q6", 656),
    ("q8", 850),
    ("mxfp4", 450),
    ("nvfp4", 450),
    ("fp4", 450),
    ("nf4", 450),
    ("int4", 450),
    ("4bit", 450),
    ("w4a16", 450),
    ("awq", 450),
    ("gptq", 450),
    ("fp8", 800),
    ("f8", 800),
    ("int8", 800),
    ("8bit", 800),
    ("w8a8", 800),
    ("bf16", 1600),
    ("fp16", 1600),
    ("f16", 1600),
    ("fp32", 3200),
    ("f32", 3200),
];
const BITS_DEFAULT: u64 = 1600;

/// Returns the bytes of the weights by a model's name, without any margin; none where it has no size.
pub(super) fn weights_bytes(name: &str) -> Option<u64> {
    let name = name.to_ascii_lowercase();
    let words = words(&name);
    // `17b-16e`: parameters of a token, and a number of experts from which the whole does not follow.
    let is_experts = |word: &&str| word.strip_suffix('e').is_some_and(is_number);
    if words.iter().any(is_experts) {
        return None;
    }
    let parameters = words.iter().filter_map(|word| parameters(word)).max()?;
    let named = words.iter().find_map(|word| bits(word));
    let hundredths = u128::from(parameters) * u128::from(named.unwrap_or(BITS_DEFAULT));
    u64::try_from(hundredths / 800).ok()
}

/// Words of letters and digits; a point is a part of one between two digits.
fn words(name: &str) -> Vec<&str> {
    let bytes = name.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let is_point = |at: usize| bytes[at] == b'.' && at > 0 && is_digit(at - 1) && is_digit(at + 1);
    let is_between = |at: usize| !bytes[at].is_ascii_alphanumeric() && !is_point(at);
    let mut words = Vec::new();
    let mut begin = 0;
    for at in (0..bytes.len()).filter(|at| is_between(*at)) {
        // Both ends are beside bytes that are ASCII, or the text's own.
        words.extend(name.get(begin..at));
        begin = at + 1;
    }
    words.extend(name.get(begin..));
    words
}

/// `7b`, `0.5b`, `8x22b`, `135m` and `1t` as numbers.
fn parameters(word: &str) -> Option<u64> {
    let unit = match word.chars().last()? {
        'm' => 1_000_000,
        'b' => 1_000_000_000,
        't' => 1_000_000_000_000,
        _ => return None,
    };
    let number = &word[..word.len() - 1];
    let (copies, number) = match number.split_once('x') {
        Some((copies, number)) if is_number(copies) => (copies.parse().ok()?, number),
        Some(_) => return None,
        None => (1_u64, number),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if !is_number(whole) || !is_number(part) || part.len() > 3 {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(part.len()).ok()?);
    let thousandths = part.parse::<u64>().ok()? * (unit / scale);
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let parameters = whole.checked_add(thousandths)?.checked_mul(copies)?;
    (1..=PARAMETERS_MAX)
        .contains(&parameters)
        .then_some(parameters)
}

fn bits(word: &str) -> Option<u64> {
    let row = BITS
        .iter()
        .find(|(beginning, _)| word.starts_with(beginning))?;
    Some(row.1)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BILLION: u64 = 1_000_000_000;

    #[test]
    fn sizes_and_bits_are_read_from_names() {
        for (name, parameters, hundredths) in [
            ("Qwen2.5-7B-Instruct", 7 * BILLION, 1600),
            ("mixtral-8x7b-instruct-v0.1.Q4_K_M", 56 * BILLION, 489),
            ("Qwen3-30B-A3B-GPTQ-Int4", 30 * BILLION, 450),
            ("meta/llama-3.1-8b-fp8", 8 * BILLION, 800),
            ("SmolLM2-135M-Instruct-Q8_0", 135_000_000, 850),
            ("qwen2.5-0.5b-instruct-awq", 500_000_000, 450),
            ("kimi-k2-1t", 1000 * BILLION, 1600),
            ("gemma-2-27b-it-IQ4_XS", 27 * BILLION, 446),
        ] {
            let expected = u128::from(parameters) * u128::from(hundredths as u64) / 800;
            assert_eq!(
                weights_bytes(name).map(u128::from),
                Some(expected),
                "{name}"
            );
        }
    }

    #[test]
    fn names_without_a_size_have_none() {
        for name in [
            "",
            "sdxl",
            "phi-3-mini-4k",
            "whisper-large-v3",
            "Llama-4-Scout-17B-16E",
            "0b",
            "b",
            "7é",
            "999999999999999999999b",
            "99999999999x9999999999t",
            "1.2.3b",
        ] {
            assert_eq!(weights_bytes(name), None, "{name:?}");
        }
    }
}
