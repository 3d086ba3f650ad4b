//! JSON ↔ values of the component model, by the type a function declares: fixtures and author tools.
//!
//! Not on the request path. Records, variants and enums have WIT's own spelling (`kebab-case`). A `list<u8>`
//! is `{"text": …}`, `{"json": …}` or `{"base64": …}`, read from a plain string too. A case with a payload is
//! `{"case": payload}`, one without its bare name. `none` is null or absent; a result is `{"ok": …}` or
//! `{"err": …}`. Numbers that JSON has no word for are the strings `NaN`, `inf` and `-inf`. Nesting has at
//! most [`DEPTH_MAX`] levels.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Number, Value, json};
use wasmtime::component::types::{Enum, Flags, List, Record, Tuple, Variant};
use wasmtime::component::{Type, Val};

/// Deeper values do not occur in our interfaces.
const DEPTH_MAX: usize = 32;

/// A place in a JSON document, for messages.
#[derive(Clone)]
struct JsonPath {
    path: String,
    depth: usize,
}

/// A JSON value as the type wants it.
///
/// # Errors
/// Where it does not fit, and what is expected there.
pub fn from_json(value: &Value, ty: &Type, at: &str) -> Result<Val, String> {
    let place = JsonPath {
        path: at.to_owned(),
        depth: 0,
    };
    place.read(value, ty)
}

impl JsonPath {
    fn no(&self, expected: &str) -> String {
        format!("{}: expected {expected}", self.path)
    }

    fn below(&self, key: &str) -> JsonPath {
        JsonPath {
            path: format!("{}.{key}", self.path),
            depth: self.depth + 1,
        }
    }

    fn read(&self, value: &Value, ty: &Type) -> Result<Val, String> {
        if self.depth > DEPTH_MAX {
            return Err(self.no("less nesting"));
        }
        match ty {
            Type::List(list) => self.list(value, list),
            Type::Tuple(tuple) => self.tuple(value, tuple),
            Type::Record(record) => self.record(value, record),
            Type::Variant(variant) => self.variant(value, variant),
            Type::Enum(cases) => self.word(value, cases),
            Type::Flags(flags) => self.flags(value, flags),
            Type::Option(_) if value.is_null() => Ok(Val::Option(None)),
            Type::Option(option) => {
                let some = self.below("some").read(value, &option.ty())?;
                Ok(Val::Option(Some(Box::new(some))))
            }
            Type::Result(result) => {
                let (payload, ty, is_ok) = match case_of(value) {
                    Some(("ok", payload)) => (payload, result.ok(), true),
                    Some(("err", payload)) => (payload, result.err(), false),
                    _ => return Err(self.no("{\"ok\": …} or {\"err\": …}")),
                };
                let payload = payload.unwrap_or(&Value::Null);
                let inner = ty.map(|ty| self.below("result").read(payload, &ty).map(Box::new));
                let inner = inner.transpose()?;
                Ok(Val::Result(if is_ok { Ok(inner) } else { Err(inner) }))
            }
            scalar => self.scalar(value, scalar),
        }
    }

    fn whole(&self, value: &Value, min: i64, max: i64) -> Result<i64, String> {
        let number = value.as_i64().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| self.no(&format!("a whole number from {min} to {max}")))
    }

    fn scalar(&self, value: &Value, ty: &Type) -> Result<Val, String> {
        Ok(match ty {
            Type::Bool => Val::Bool(value.as_bool().ok_or_else(|| self.no("true or false"))?),
            Type::U8 => Val::U8(self.whole(value, 0, 255)? as u8),
            Type::S8 => Val::S8(self.whole(value, -128, 127)? as i8),
            Type::U16 => Val::U16(self.whole(value, 0, 65_535)? as u16),
            Type::S16 => Val::S16(self.whole(value, -32_768, 32_767)? as i16),
            Type::U32 => Val::U32(self.whole(value, 0, i64::from(u32::MAX))? as u32),
            Type::S32 => Val::S32(self.whole(value, i32::MIN.into(), i32::MAX.into())? as i32),
            Type::U64 => Val::U64(value.as_u64().ok_or_else(|| self.no("a whole number"))?),
            Type::S64 => Val::S64(value.as_i64().ok_or_else(|| self.no("a whole number"))?),
            Type::Float32 => Val::Float32(float(value).ok_or_else(|| self.no("a number"))? as f32),
            Type::Float64 => Val::Float64(float(value).ok_or_else(|| self.no("a number"))?),
            Type::Char => {
                let mut chars = value.as_str().unwrap_or_default().chars();
                match (chars.next(), chars.next()) {
                    (Some(one), None) => Val::Char(one),
                    _ => return Err(self.no("one character")),
                }
            }
            Type::String => Val::String(value.as_str().ok_or_else(|| self.no("text"))?.to_owned()),
            _ => return Err(self.no("a type that plugins use")),
        })
    }

    fn list(&self, value: &Value, list: &List) -> Result<Val, String> {
        if matches!(list.ty(), Type::U8) {
            let bytes = bytes(value)
                .ok_or_else(|| self.no("{\"text\": …}, {\"json\": …} or {\"base64\": …}"))?;
            return Ok(Val::List(bytes.into_iter().map(Val::U8).collect()));
        }
        if value.is_null() {
            return Ok(Val::List(Vec::new()));
        }
        let items = value.as_array().ok_or_else(|| self.no("a list"))?;
        let read = |(at, item)| self.below(&format!("{at}")).read(item, &list.ty());
        Ok(Val::List(
            items
                .iter()
                .enumerate()
                .map(read)
                .collect::<Result<_, _>>()?,
        ))
    }

    fn tuple(&self, value: &Value, tuple: &Tuple) -> Result<Val, String> {
        let types: Vec<Type> = tuple.types().collect();
        let items = value.as_array().filter(|items| items.len() == types.len());
        let items = items.ok_or_else(|| self.no(&format!("a list of {}", types.len())))?;
        let pairs = items.iter().zip(&types).enumerate();
        let read = pairs.map(|(at, (item, ty))| self.below(&at.to_string()).read(item, ty));
        Ok(Val::Tuple(read.collect::<Result<_, _>>()?))
    }

    fn record(&self, value: &Value, record: &Record) -> Result<Val, String> {
        let object = value.as_object().ok_or_else(|| self.no("an object"))?;
        let known: Vec<&str> = record.fields().map(|field| field.name).collect();
        if let Some(key) = object.keys().find(|key| !known.contains(&key.as_str())) {
            let path = &self.path;
            return Err(format!(
                "{path}.{key}: unknown key; the keys here are {}",
                known.join(", ")
            ));
        }
        let fields = record.fields().map(|field| {
            let value = object.get(field.name).unwrap_or(&Value::Null);
            let read = self.below(field.name).read(value, &field.ty)?;
            Ok((field.name.to_owned(), read))
        });
        Ok(Val::Record(fields.collect::<Result<_, String>>()?))
    }

    fn word(&self, value: &Value, cases: &Enum) -> Result<Val, String> {
        let word = value.as_str().unwrap_or_default();
        let known: Vec<&str> = cases.names().collect();
        if !known.contains(&word) {
            return Err(self.no(&format!("one of {}", known.join(", "))));
        }
        Ok(Val::Enum(word.to_owned()))
    }

    fn flags(&self, value: &Value, flags: &Flags) -> Result<Val, String> {
        let known: Vec<&str> = flags.names().collect();
        let no = || self.no(&format!("a list of {}", known.join(", ")));
        let words = value.as_array().ok_or_else(no)?;
        let read = words.iter().map(|word| {
            let word = word.as_str().unwrap_or_default();
            known
                .contains(&word)
                .then(|| word.to_owned())
                .ok_or_else(no)
        });
        Ok(Val::Flags(read.collect::<Result<_, _>>()?))
    }

    fn variant(&self, value: &Value, variant: &Variant) -> Result<Val, String> {
        let (case, payload) = case_of(value).unwrap_or_default();
        let Some(known) = variant.cases().find(|known| known.name == case) else {
            let names: Vec<&str> = variant.cases().map(|case| case.name).collect();
            return Err(self.no(&format!("one of {}", names.join(", "))));
        };
        let payload = match (known.ty, payload) {
            (Some(ty), Some(payload)) => Some(Box::new(self.below(case).read(payload, &ty)?)),
            (None, None) => None,
            (Some(_), None) => return Err(self.no(&format!("{{\"{case}\": …}}"))),
            (None, Some(_)) => return Err(self.no(&format!("\"{case}\""))),
        };
        Ok(Val::Variant(case.to_owned(), payload))
    }
}

fn case_of(value: &Value) -> Option<(&str, Option<&Value>)> {
    match value {
        Value::String(case) => Some((case, None)),
        Value::Object(object) if object.len() == 1 => object
            .iter()
            .next()
            .map(|(case, payload)| (case.as_str(), Some(payload))),
        _ => None,
    }
}

fn float(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some(_) => None,
        None => value.as_f64(),
    }
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    match (value, case_of(value)) {
        (Value::String(text), _) => Some(text.clone().into_bytes()),
        (Value::Null, _) => Some(Vec::new()),
        (_, Some(("text", Some(Value::String(text))))) => Some(text.clone().into_bytes()),
        // JSON may stand in place of its text, so that a fixture can be read.
        (_, Some(("json", Some(json)))) => Some(json.to_string().into_bytes()),
        (_, Some(("base64", Some(Value::String(text))))) => BASE64.decode(text).ok(),
        _ => None,
    }
}

/// A value of that type as JSON. Bytes that are UTF-8 are `{"text": …}`.
pub fn to_json(val: &Val, ty: &Type) -> Value {
    match (val, ty) {
        (Val::List(items), Type::List(list)) if matches!(list.ty(), Type::U8) => {
            let bytes = items.iter().map(|item| match item {
                Val::U8(byte) => *byte,
                _ => 0,
            });
            match String::from_utf8(bytes.collect()) {
                Ok(text) => json!({ "text": text }),
                Err(error) => json!({ "base64": BASE64.encode(error.as_bytes()) }),
            }
        }
        (Val::List(items), Type::List(list)) => {
            items.iter().map(|item| to_json(item, &list.ty())).collect()
        }
        (Val::Tuple(items), Type::Tuple(tuple)) => items
            .iter()
            .zip(tuple.types())
            .map(|(item, ty)| to_json(item, &ty))
            .collect(),
        (Val::Record(fields), Type::Record(record)) => {
            let pairs = fields.iter().zip(record.fields());
            let object =
                pairs.map(|((name, value), field)| (name.clone(), to_json(value, &field.ty)));
            Value::Object(object.collect::<Map<_, _>>())
        }
        (Val::Option(Some(value)), Type::Option(option)) => to_json(value, &option.ty()),
        (Val::Variant(case, Some(payload)), Type::Variant(variant)) => {
            let known = variant.cases().find(|known| known.name == case.as_str());
            let ty = known.and_then(|known| known.ty);
            json!({ case.as_str(): ty.map_or(Value::Null, |ty| to_json(payload, &ty)) })
        }
        (Val::Result(Ok(value)), Type::Result(result)) => {
            json!({ "ok": boxed(value, result.ok()) })
        }
        (Val::Result(Err(value)), Type::Result(result)) => {
            json!({ "err": boxed(value, result.err()) })
        }
        (val, _) => plain(val),
    }
}

fn boxed(value: &Option<Box<Val>>, ty: Option<Type>) -> Value {
    match (value, ty) {
        (Some(value), Some(ty)) => to_json(value, &ty),
        _ => Value::Null,
    }
}

fn plain(val: &Val) -> Value {
    match val {
        Val::Bool(value) => json!(value),
        Val::U8(value) => json!(value),
        Val::S8(value) => json!(value),
        Val::U16(value) => json!(value),
        Val::S16(value) => json!(value),
        Val::U32(value) => json!(value),
        Val::S32(value) => json!(value),
        Val::U64(value) => json!(value),
        Val::S64(value) => json!(value),
        Val::Float32(value) => number(f64::from(*value)),
        Val::Float64(value) => number(*value),
        Val::Char(value) => json!(value),
        Val::String(value) => json!(value),
        Val::Enum(case) | Val::Variant(case, None) => json!(case),
        Val::Flags(flags) => json!(flags),
        _ => Value::Null,
    }
}

fn number(value: f64) -> Value {
    match Number::from_f64(value) {
        Some(number) => Value::Number(number),
        None if value.is_nan() => json!("NaN"),
        None if value > 0.0 => json!("inf"),
        None => json!("-inf"),
    }
}

/// Bytes that handing over a value copies, near enough: pointers and lengths count, padding does not.
pub fn size(val: &Val) -> usize {
    /// A pointer and a length.
    const HEAD: usize = 8;
    match val {
        Val::Bool(_) | Val::U8(_) | Val::S8(_) | Val::Enum(_) => 1,
        Val::U16(_) | Val::S16(_) => 2,
        Val::U64(_) | Val::S64(_) | Val::Float64(_) => 8,
        Val::String(text) => HEAD + text.len(),
        Val::List(items) => HEAD + items.iter().map(size).sum::<usize>(),
        Val::Tuple(items) => items.iter().map(size).sum(),
        Val::Record(fields) => fields.iter().map(|(_, value)| size(value)).sum(),
        Val::Option(payload)
        | Val::Variant(_, payload)
        | Val::Result(Ok(payload) | Err(payload)) => 1 + payload.as_deref().map_or(0, size),
        _ => 4,
    }
}
