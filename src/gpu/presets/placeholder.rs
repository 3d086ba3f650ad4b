//! Placeholders of commands: their names, and the reading of a text that has them.
//!
//! Their values are unknown here. `{{` is a brace; a brace that opens nothing known is a fault.

use std::fmt;

/// Placeholders with their meaning.
pub const PLACEHOLDERS: &[(&str, &str)] = &[
    ("port", "port that the server must listen on"),
    (
        "host",
        "address that the server must listen on, by `process.listen`",
    ),
    ("model_path", "`process.model_path`"),
    ("model", "id of the model"),
    ("context", "tokens of one request"),
    ("context_total", "`context` × `parallel`"),
    ("parallel", "requests that are worked on at once"),
    (
        "gpu_uuids",
        "devices, with commas between them; of a simulated card its folder",
    ),
    ("gpu_count", "number of devices"),
    ("vram_mib", "lease on each device, MiB"),
    (
        "gpu_fraction",
        "share of a device: lease ÷ total, less what the server takes beside it",
    ),
    (
        "tensor_split",
        "leases of the devices in their order, with commas between them",
    ),
    (
        "api_key",
        "key of this instance, which the gateway sends with each request",
    ),
    ("instance", "id of this instance"),
    ("socket", "path of a socket of this instance"),
];

/// Piece of a text with placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplatePiece<'a> {
    /// Text that stands for itself.
    Text(&'a str),
    /// Placeholder, by its name in [`PLACEHOLDERS`].
    Placeholder(&'static str),
}

/// Fault of a text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceholderFault {
    /// A brace is not closed.
    Open,
    /// A name that is none.
    Unknown(String),
}

impl fmt::Display for PlaceholderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlaceholderFault::Open => {
                f.write_str("a `{` is not closed: write `{{` for a brace that stands for itself")
            }
            PlaceholderFault::Unknown(name) => {
                let names = PLACEHOLDERS.iter().map(|(name, _)| *name);
                let names: Vec<&str> = names.collect();
                write!(
                    f,
                    "`{{{name}}}` is no placeholder: use one of {}, or write `{{{{` for a brace that stands for itself",
                    names.join(", ")
                )
            }
        }
    }
}

/// Reads a text into its pieces.
///
/// # Errors
/// A placeholder is unknown or not closed.
pub fn template_pieces(text: &str) -> Result<Vec<TemplatePiece<'_>>, PlaceholderFault> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from_brace) = rest.split_at(at);
        if !before.is_empty() {
            pieces.push(TemplatePiece::Text(before));
        }
        if let Some(after) = from_brace.strip_prefix("{{") {
            pieces.push(TemplatePiece::Text("{"));
            rest = after;
            continue;
        }
        let (name, after) = from_brace[1..]
            .split_once('}')
            .ok_or(PlaceholderFault::Open)?;
        let known = PLACEHOLDERS.iter().find(|(known, _)| *known == name);
        let (known, _) = known.ok_or_else(|| PlaceholderFault::Unknown(name.to_owned()))?;
        pieces.push(TemplatePiece::Placeholder(known));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(TemplatePiece::Text(rest));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_stand_between_texts_and_a_double_brace_is_one() {
        let pieces = template_pieces("{host}:{port}/a{{b}").unwrap();
        assert_eq!(
            pieces,
            [
                TemplatePiece::Placeholder("host"),
                TemplatePiece::Text(":"),
                TemplatePiece::Placeholder("port"),
                TemplatePiece::Text("/a"),
                TemplatePiece::Text("{"),
                TemplatePiece::Text("b}"),
            ]
        );
        assert!(template_pieces("").unwrap().is_empty());
        assert_eq!(
            template_pieces(r#"{{"a":1}"#).unwrap().len(),
            2,
            "JSON needs its opening brace doubled"
        );
    }

    #[test]
    fn unknown_and_open_ones_are_faults() {
        assert_eq!(
            template_pieces("x{prot}"),
            Err(PlaceholderFault::Unknown("prot".to_owned()))
        );
        assert_eq!(
            template_pieces("{}"),
            Err(PlaceholderFault::Unknown(String::new()))
        );
        assert_eq!(template_pieces("{port"), Err(PlaceholderFault::Open));
        let shown = PlaceholderFault::Unknown("x".to_owned()).to_string();
        assert!(shown.starts_with("`{x}` is no placeholder"), "{shown}");
        assert!(shown.ends_with("`{{` for a brace that stands for itself"));
    }
}
