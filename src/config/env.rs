//! `${NAME}` in the file: secrets come from the environment, not from the file.
//!
//! The environment is not read here; a lookup is passed in. Only values are searched, keys never;
//! the result is always text, and `$${` stands for a literal `${`.

use super::document::{DocumentNode, NodeData};
use super::problem::{FilePosition, Problem, Problems, path_of_item, path_of_key};

/// Lookup of a name in the environment.
pub type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Replaces every `${NAME}` below `node`; names without a value are problems.
pub(super) fn substitute(node: &mut DocumentNode, env: EnvLookup<'_>, problems: &mut Problems) {
    let place = node.place;
    substitute_below(node, "", place, env, problems);
}

fn substitute_below(
    node: &mut DocumentNode,
    path: &str,
    place: FilePosition,
    env: EnvLookup<'_>,
    problems: &mut Problems,
) {
    match &mut node.data {
        NodeData::Text(text) if text.value.contains("${") => match expand(&text.value, env) {
            Ok(value) => {
                text.source = Some(std::mem::replace(&mut text.value, value));
            }
            Err(message) => problems.add(Problem::new(path, place, message)),
        },
        NodeData::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                let place = item.place;
                substitute_below(item, &path_of_item(path, index), place, env, problems);
            }
        }
        NodeData::Map(entries) => {
            for entry in entries {
                let path = path_of_key(path, &entry.key);
                substitute_below(&mut entry.value, &path, entry.place, env, problems);
            }
        }
        _ => {}
    }
}

/// `text` with its variables replaced, or what is wrong with it.
fn expand(text: &str, env: EnvLookup<'_>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut unset = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let after = &rest[at + 2..];
        let Some(end) = after.find('}') else {
            return Err("`${` without its `}`: write ${NAME}, or $${ for a literal ${".to_owned());
        };
        let name = &after[..end];
        if !is_name(name) {
            return Err(format!(
                "`${{{name}}}` is not a variable's name: use letters, digits and `_`, or write $${{ for a literal ${{"
            ));
        }
        match env(name) {
            Some(value) => out.push_str(&value),
            None => unset.push(name),
        }
        rest = &after[end + 1..];
    }
    if unset.is_empty() {
        out.push_str(rest);
        return Ok(out);
    }
    unset.dedup();
    let (noun, verb) = if unset.len() == 1 {
        ("variable", "is")
    } else {
        ("variables", "are")
    };
    Err(format!(
        "environment {noun} {} {verb} not set: set it for this process, or write $${{ for a literal ${{",
        unset.join(", ")
    ))
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "KEY" => Some("s3cret".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${KEY}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced_wherever_they_stand_and_once_only() {
        assert_eq!(expand("${KEY}", &env).unwrap(), "s3cret");
        assert_eq!(
            expand("a-${KEY}-${KEY}-b", &env).unwrap(),
            "a-s3cret-s3cret-b"
        );
        assert_eq!(expand("x${EMPTY}y", &env).unwrap(), "xy");
        assert_eq!(expand("${NESTED}", &env).unwrap(), "${KEY}");
    }

    #[test]
    fn a_doubled_dollar_is_a_literal_one() {
        assert_eq!(expand("$${KEY}", &env).unwrap(), "${KEY}");
        assert_eq!(expand("$${KEY} ${KEY}", &env).unwrap(), "${KEY} s3cret");
        assert_eq!(expand("$KEY $ {}", &env).unwrap(), "$KEY $ {}");
    }

    #[test]
    fn every_unset_variable_is_named() {
        let message = expand("${A}${B}${KEY}", &env).unwrap_err();
        assert!(message.contains("A, B are not set"), "{message}");
        assert!(!message.contains("s3cret"));
        assert!(expand("${A", &env).unwrap_err().contains("without its `}`"));
        assert!(
            expand("${1A}", &env)
                .unwrap_err()
                .contains("not a variable's name")
        );
        assert!(
            expand("${}", &env)
                .unwrap_err()
                .contains("not a variable's name")
        );
        assert!(
            expand("${KEY:-x}", &env)
                .unwrap_err()
                .contains("not a variable's name")
        );
    }
}
