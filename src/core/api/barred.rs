//! Names that a request must not bring to its server: of members, inputs, parameters, and of members in a text of parameters.
//!
//! Read as servers read them: escapes are decoded, of a name that comes twice each counts, and null names nothing. What
//! cannot be read is barred as a whole, for its server may read more than JSON. Backends say which names are barred. Called
//! for requests to models with finetunes alone.

#[cfg(test)]
mod tests;

use serde_json::value::RawValue;

use super::body::BodyMembers;
use super::call::{Call, Operation};
use super::json::{each_item, each_member, is_list};

/// Member by which clients name a finetune.
const LORA: &[u8] = b"lora";
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
pub struct Barred {
    /// JSON Pointer of what has it.
    pub pointer: String,
    /// Fault.
    pub fault: BarredFault,
}

/// Fault of what a request must not bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarredFault {
    /// A barred name.
    Name(&'static str),
    /// No JSON, or not the JSON that is read here, or a name with U+0000, behind which servers may read no further.
    Unreadable,
    /// The member that names a finetune stands twice: servers could take either.
    Repeated,
}

impl BarredNames {
    /// Bars these names and no text.
    pub const fn only(names: &'static [&'static str]) -> BarredNames {
        BarredNames { names, text: None }
    }

    /// Returns the first of what the request brings.
    pub fn find(&self, call: &Call) -> Option<Barred> {
        match &call.tensors {
            Some(tensors) if call.operation == Operation::Infer => {
                let json_bytes = tensors.json_bytes.unwrap_or(call.body.len());
                let (json, binary) = call.body.split_at_checked(json_bytes)?;
                self.find_in_tensors(json, binary)
            }
            Some(_) => self.find_in_generate(&call.body),
            None => self.find_in_input(call),
        }
    }

    /// The input of a task. Bytes may be an object that nobody has read, which a plugin or a server reads after all.
    fn find_in_input(&self, call: &Call) -> Option<Barred> {
        let is_read = call.content_type.is_none();
        if !is_read && !call.body.trim_ascii_start().starts_with(b"{") {
            return None;
        }
        let members = BodyMembers::read(&call.body).ok()?;
        let mut has_lora = false;
        members.list.iter().find_map(|member| {
            let value = &call.body[member.value.clone()];
            if *member.key != *LORA {
                return self.find_in_member(&member.key, value, "");
            }
            let fault = match std::mem::replace(&mut has_lora, true) {
                true => BarredFault::Repeated,
                false if !is_read && value != b"null" => BarredFault::Name("lora"),
                false => return None,
            };
            Some(fault.at("/lora".into()))
        })
    }

    /// A request to generate: its members are inputs of the model, and so are those of its parameters.
    fn find_in_generate(&self, body: &[u8]) -> Option<Barred> {
        let members = BodyMembers::read(body).ok()?;
        members.list.iter().find_map(|member| {
            let value = &body[member.value.clone()];
            match *member.key == *PARAMETERS.as_bytes() {
                true => self.find_in_parameters(value),
                false => self.find_in_member(&member.key, value, ""),
            }
        })
    }

    /// Parameters of another form are the server's to refuse.
    fn find_in_parameters(&self, json: &[u8]) -> Option<Barred> {
        if !json.starts_with(b"{") {
            return None;
        }
        let prefix = format!("/{PARAMETERS}");
        let mut first = None;
        let read = each_member(json, |name, value| {
            if first.is_none() {
                first = self.find_in_member(name.as_bytes(), value.get().as_bytes(), &prefix);
            }
            Ok(())
        });
        first.or_else(|| read.is_err().then(|| BarredFault::Unreadable.at(prefix)))
    }

    fn find_in_member(&self, name: &[u8], value: &[u8], prefix: &str) -> Option<Barred> {
        if value == b"null" {
            return None;
        }
        if let Some(fault) = self.fault_of_name(name) {
            return Some(fault.at(fault.pointer(prefix)));
        }
        let text = self.text.filter(|text| text.as_bytes() == name)?;
        let fault = match value.first() {
            // An object becomes such a text on its way.
            Some(b'{') => self.find_in_text(value),
            _ => self.find_in_element(serde_json::from_slice(value).ok()?),
        };
        fault.map(|fault| fault.at(format!("{prefix}/{text}")))
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
        let read = each_item(inputs, |at, input| {
            let read = TensorInput::read(input);
            let bytes = read.binary_bytes.min(binary.len());
            let (own, rest) = binary.split_at(bytes);
            binary = rest;
            if first.is_none() {
                let fault = self.find_in_tensor(&read, own);
                first = fault.map(|fault| fault.at(format!("/{INPUTS}/{at}")));
            }
            Ok(())
        });
        let unreadable = || BarredFault::Unreadable.at(format!("/{INPUTS}"));
        first.or_else(|| read.is_err().then(unreadable))
    }

    fn find_in_tensor(&self, input: &TensorInput<'_>, binary: &[u8]) -> Option<BarredFault> {
        if input.is_unreadable {
            return Some(BarredFault::Unreadable);
        }
        let mut names = input.names.iter();
        if let Some(fault) = names.find_map(|name| self.fault_of_name(name.as_bytes())) {
            return Some(fault);
        }
        let is_text = |text: &&str| input.names.iter().any(|name| name == text);
        self.text.filter(is_text)?;
        let mut data = input.data.iter();
        let in_json = data.find_map(|data| self.find_in_data(data, 0));
        in_json.or_else(|| self.find_in_elements(binary))
    }

    /// Elements of a tensor of texts in JSON: lists may be nested as its shape is.
    fn find_in_data(&self, data: &RawValue, depth: usize) -> Option<BarredFault> {
        if !is_list(data) {
            return self.find_in_element(data);
        }
        if depth >= DIMENSIONS_MAX {
            return Some(BarredFault::Unreadable);
        }
        let mut first = None;
        let read = each_item(data, |_, item| {
            first = first.or_else(|| self.find_in_data(item, depth + 1));
            Ok(())
        });
        first.or_else(|| read.is_err().then_some(BarredFault::Unreadable))
    }

    /// Elements of a tensor of texts in binary: each has its length before it, least byte first.
    fn find_in_elements(&self, mut bytes: &[u8]) -> Option<BarredFault> {
        while !bytes.is_empty() {
            let element = bytes.split_first_chunk().and_then(|(length, rest)| {
                let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
                rest.split_at_checked(length)
            });
            let Some((element, rest)) = element else {
                return Some(BarredFault::Unreadable);
            };
            if let Some(found) = self.find_in_text(element) {
                return Some(found);
            }
            bytes = rest;
        }
        None
    }

    fn find_in_element(&self, element: &RawValue) -> Option<BarredFault> {
        match serde_json::from_str::<Option<String>>(element.get()) {
            Ok(text) => self.find_in_text(text?.as_bytes()),
            Err(_) => Some(BarredFault::Unreadable),
        }
    }

    fn find_in_text(&self, text: &[u8]) -> Option<BarredFault> {
        let mut first = None;
        let read = each_member(text, |name, value| {
            if value.get() != "null" {
                first = first.or_else(|| self.fault_of_name(name.as_bytes()));
            }
            Ok(())
        });
        first.or_else(|| read.is_err().then_some(BarredFault::Unreadable))
    }

    fn fault_of_name(&self, name: &[u8]) -> Option<BarredFault> {
        let mut names = self.names.iter().copied();
        let barred = names.find(|known| known.as_bytes() == name);
        let unreadable = || name.contains(&0).then_some(BarredFault::Unreadable);
        barred.map(BarredFault::Name).or_else(unreadable)
    }
}

impl BarredFault {
    fn at(self, pointer: String) -> Barred {
        Barred {
            pointer,
            fault: self,
        }
    }

    /// JSON Pointer of a member of what is at `prefix`.
    fn pointer(self, prefix: &str) -> String {
        match self {
            BarredFault::Name(name) => format!("{prefix}/{name}"),
            BarredFault::Unreadable | BarredFault::Repeated => prefix.to_owned(),
        }
    }
}

/// An input of a request of tensors, as far as it is looked at.
#[derive(Default)]
struct TensorInput<'a> {
    names: Vec<String>,
    data: Vec<&'a RawValue>,
    /// Bytes of its tensor behind the JSON.
    binary_bytes: usize,
    is_unreadable: bool,
}

impl<'a> TensorInput<'a> {
    fn read(input: &'a RawValue) -> TensorInput<'a> {
        let mut read = TensorInput::default();
        let members = each_member(input.get().as_bytes(), |member, value: &'a RawValue| {
            match member {
                "name" => match serde_json::from_str::<String>(value.get()) {
                    Ok(name) => read.names.push(name),
                    // Another form than a text is no name.
                    Err(_) => read.is_unreadable |= value.get().starts_with('"'),
                },
                "data" => read.data.push(value),
                PARAMETERS if value.get() != "null" => {
                    let parameters = each_member(value.get().as_bytes(), |name, value| {
                        if name == "binary_data_size" {
                            let bytes = value.get().parse().unwrap_or(usize::MAX);
                            read.binary_bytes = read.binary_bytes.saturating_add(bytes);
                        }
                        Ok(())
                    });
                    read.is_unreadable |= parameters.is_err();
                }
                _ => {}
            }
            Ok(())
        });
        read.is_unreadable |= members.is_err();
        read
    }
}
