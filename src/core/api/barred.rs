//! Names that a request must not bring to its server: of members, inputs, parameters, and of members in a text of parameters.
//!
//! Read as servers read them: escapes are decoded, and of a name that comes twice each counts. A text that cannot be read
//! is barred as a whole, for its server may read more than JSON. Backends say which names are barred. Called for
//! requests to models with finetunes alone.

#[cfg(test)]
mod tests;

use serde_json::value::RawValue;

use super::body::BodyMembers;
use super::call::{Call, Operation};
use super::json::{each_item, each_member, is_list};

/// Member with parameters of a request of tensors or to generate.
const PARAMETERS: &str = "parameters";
/// Member with the tensors of a request.
const INPUTS: &str = "inputs";
/// Lists within lists in which the texts of a tensor may stand: tensors have fewer dimensions.
const DIMENSIONS_MAX: usize = 8;

/// Names that requests to a kind of server must not bring.
#[derive(Clone, Copy, Debug)]
pub struct BarredNames {
    /// Names of members, inputs and parameters.
    pub names: &'static [&'static str],
    /// Member or input whose text the server reads as a JSON object of parameters.
    pub text: Option<&'static str>,
}

/// Name or text that a request must not bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Barred {
    /// The name, and the JSON Pointer of what has it.
    Name(&'static str, String),
    /// The text of this name cannot be read; the JSON Pointer of what has it.
    Unreadable(&'static str, String),
}

impl BarredNames {
    /// Bars these names and no text.
    pub const fn only(names: &'static [&'static str]) -> BarredNames {
        BarredNames { names, text: None }
    }

    /// Returns the first of the names that the request brings.
    pub fn find(&self, call: &Call) -> Option<Barred> {
        match &call.tensors {
            _ if self.names.is_empty() => None,
            Some(tensors) if call.operation == Operation::Infer => {
                let json_bytes = tensors.json_bytes.unwrap_or(call.body.len());
                let (json, binary) = call.body.split_at_checked(json_bytes)?;
                self.find_in_tensors(json, binary)
            }
            Some(_) => self.find_in_generate(call),
            // Bytes have no members.
            None if call.content_type.is_some() => None,
            None => self.find_in_members(call),
        }
    }

    /// A request to generate: its members are inputs, and parameters stand beside them.
    fn find_in_generate(&self, call: &Call) -> Option<Barred> {
        let members = BodyMembers::read(&call.body).ok()?;
        let parameters = members.last(PARAMETERS);
        let in_parameters = parameters.and_then(|range| self.find_in_parameters(&call.body[range]));
        in_parameters.or_else(|| self.find_in_members(call))
    }

    fn find_in_members(&self, call: &Call) -> Option<Barred> {
        let members = BodyMembers::read(&call.body).ok()?;
        let mut list = members.list.iter();
        list.find_map(|member| {
            if let Some(name) = self.position(&member.key) {
                return Some(Barred::Name(name, format!("/{name}")));
            }
            let text = self.text.filter(|text| *member.key == *text.as_bytes())?;
            let value = &call.body[member.value.clone()];
            let is_barred = match value.first() {
                // An object becomes such a text on its way.
                Some(b'{') => self.find_in_text(value),
                _ => self.find_in_element(serde_json::from_slice(value).ok()?),
            };
            is_barred.map(|found| found.at(text, format!("/{text}")))
        })
    }

    /// A request of tensors: what is not JSON comes behind it, in the order of the inputs.
    fn find_in_tensors(&self, json: &[u8], mut binary: &[u8]) -> Option<Barred> {
        let members = BodyMembers::read(json).ok()?;
        let parameters = members.last(PARAMETERS);
        if let Some(found) = parameters.and_then(|range| self.find_in_parameters(&json[range])) {
            return Some(found);
        }
        let inputs: &RawValue = serde_json::from_slice(&json[members.last(INPUTS)?]).ok()?;
        let mut first = None;
        // Inputs of another form have no name, and are the server's to refuse: those before them count all the same.
        let _ = each_item(inputs, |_, input| {
            let input = Input::read(input);
            let bytes = binary.split_at_checked(input.binary_bytes);
            let (own, rest) = bytes.unwrap_or((binary, &[]));
            binary = rest;
            if first.is_none() {
                first = self.find_in_input(&input, own);
            }
            Ok(())
        });
        first
    }

    fn find_in_input(&self, input: &Input<'_>, binary: &[u8]) -> Option<Barred> {
        let pointer = || format!("/{INPUTS}");
        let mut names = input.names.iter();
        if let Some(name) = names.find_map(|name| self.position(name.as_bytes())) {
            return Some(Barred::Name(name, pointer()));
        }
        let is_text = |text: &&str| input.names.iter().any(|name| name == text);
        let text = self.text.filter(is_text)?;
        let mut data = input.data.iter();
        let in_json = data.find_map(|data| self.find_in_data(data, 0));
        let found = in_json.or_else(|| self.find_in_elements(binary))?;
        Some(found.at(text, pointer()))
    }

    /// Elements of a tensor of texts in JSON: lists may be nested as its shape is.
    fn find_in_data(&self, data: &RawValue, depth: usize) -> Option<InText> {
        if !is_list(data) {
            return self.find_in_element(data);
        }
        if depth >= DIMENSIONS_MAX {
            return Some(InText::Unreadable);
        }
        let mut first = None;
        let read = each_item(data, |_, item| {
            first = first.or_else(|| self.find_in_data(item, depth + 1));
            Ok(())
        });
        first.or_else(|| read.is_err().then_some(InText::Unreadable))
    }

    /// Elements of a tensor of texts in binary: each has its length before it, least byte first.
    fn find_in_elements(&self, mut bytes: &[u8]) -> Option<InText> {
        while !bytes.is_empty() {
            let element = bytes.split_first_chunk().and_then(|(length, rest)| {
                let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
                rest.split_at_checked(length)
            });
            let Some((element, rest)) = element else {
                return Some(InText::Unreadable);
            };
            if let Some(found) = self.find_in_text(element) {
                return Some(found);
            }
            bytes = rest;
        }
        None
    }

    fn find_in_element(&self, element: &RawValue) -> Option<InText> {
        match serde_json::from_str::<Option<String>>(element.get()) {
            Ok(text) => self.find_in_text(text?.as_bytes()),
            Err(_) => Some(InText::Unreadable),
        }
    }

    fn find_in_text(&self, text: &[u8]) -> Option<InText> {
        let mut first = None;
        let read = each_member(text, |name, _| {
            first = first.or_else(|| self.position(name.as_bytes()));
            Ok(())
        });
        let name = first.map(InText::Name);
        name.or_else(|| read.is_err().then_some(InText::Unreadable))
    }

    /// Parameters of another form are the server's to refuse.
    fn find_in_parameters(&self, json: &[u8]) -> Option<Barred> {
        match self.find_in_text(json) {
            Some(InText::Name(name)) => Some(Barred::Name(name, format!("/{PARAMETERS}/{name}"))),
            Some(InText::Unreadable) | None => None,
        }
    }

    fn position(&self, name: &[u8]) -> Option<&'static str> {
        let mut names = self.names.iter().copied();
        names.find(|known| known.as_bytes() == name)
    }
}

/// Result of a look into a text of parameters.
#[derive(Clone, Copy)]
enum InText {
    Name(&'static str),
    Unreadable,
}

impl InText {
    fn at(self, text: &'static str, pointer: String) -> Barred {
        match self {
            InText::Name(name) => Barred::Name(name, pointer),
            InText::Unreadable => Barred::Unreadable(text, pointer),
        }
    }
}

/// An input, as far as it is looked at.
#[derive(Default)]
struct Input<'a> {
    names: Vec<String>,
    data: Vec<&'a RawValue>,
    /// Bytes of its tensor behind the JSON.
    binary_bytes: usize,
}

impl<'a> Input<'a> {
    fn read(input: &'a RawValue) -> Input<'a> {
        let mut read = Input::default();
        let _ = each_member(input.get().as_bytes(), |member, value: &'a RawValue| {
            match member {
                "name" => read
                    .names
                    .extend(serde_json::from_str::<String>(value.get())),
                "data" => read.data.push(value),
                "parameters" => {
                    let _ = each_member(value.get().as_bytes(), |name, value| {
                        if name == "binary_data_size" {
                            let bytes = value.get().parse().unwrap_or(usize::MAX);
                            read.binary_bytes = read.binary_bytes.saturating_add(bytes);
                        }
                        Ok(())
                    });
                }
                _ => {}
            }
            Ok(())
        });
        read
    }
}
