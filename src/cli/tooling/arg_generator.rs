//! Arguments by chance, such as the gateway could give a hook: for `plugin fuzz`.
//!
//! Calls nothing. The gateway guarantees much of what it hands over: numbers are finite and not negative,
//! candidates are numbered, names are unique. Arguments are made to keep these guarantees before they are
//! used, so that an impossible call is no finding. The same seed makes the same arguments.

use serde_json::{Map, Value, json};
use wasmtime::component::Type;

use crate::plugin::loading::fixtures::pricing;

/// Candidates, metrics, events of one call: real ones have fewer than ten.
const ITEMS_MAX: usize = 8;
/// Levels of a made-up JSON body.
const DEPTH_MAX: usize = 4;

/// Words that bodies, metrics and attributes are made of, and texts that have broken programs.
const WORDS: &[&str] = &[
    "prompt",
    "messages",
    "role",
    "user",
    "content",
    "text",
    "stream",
    "max_tokens",
    "image",
    "data",
    "input_tokens",
    "output_tokens",
    "image_steps",
    "resolution",
    "1080p",
    "720p",
    "lora",
    "true",
    "0",
    "-1",
    "1e309",
    "null",
    "{}",
    "[]",
    "/",
    "~0",
    "a/b",
    "",
    " ",
    "\u{0}",
    "\u{feff}",
    "\u{10ffff}",
    "e\u{301}",
    "👩‍👩‍👧‍👦",
    "'; drop table",
    "../..",
    "data: [DONE]",
    "\n\n",
];

/// Names of metrics, which the gateway holds to 64 printable bytes.
const METRICS: &[&str] = &[
    "input_tokens",
    "output_tokens",
    "image_steps",
    "image_tiles",
    "audio_seconds",
    "x",
    "größe",
];

/// A source of arguments.
#[derive(Debug)]
pub struct ArgGenerator {
    chance: fastrand::Rng,
    /// JSON Pointers that the task selects; with none it sees whole bodies.
    wants: Vec<String>,
}

impl ArgGenerator {
    /// The seed names the whole sequence.
    pub fn new(seed: u64, wants: Vec<String>) -> ArgGenerator {
        ArgGenerator {
            chance: fastrand::Rng::with_seed(seed),
            wants,
        }
    }

    /// Picks an element at random.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        match of.len() {
            0 => None,
            all => of.get(self.chance.usize(..all)),
        }
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u32) -> bool {
        self.chance.u32(..times.max(1)) == 0
    }

    pub(crate) fn arguments(
        &mut self,
        hook: &str,
        params: &[(String, Type)],
    ) -> Map<String, Value> {
        let made = params
            .iter()
            .map(|(name, ty)| (name.clone(), self.value(name, ty)));
        let mut args = made.collect();
        keep_guarantees(hook, &mut args);
        args
    }

    pub(crate) fn changed(
        &mut self,
        hook: &str,
        params: &[(String, Type)],
        args: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut args = args.clone();
        if let Some((name, ty)) = self.pick(params) {
            let value = args.entry(name.clone()).or_insert(Value::Null);
            self.change(name, value, ty);
        }
        keep_guarantees(hook, &mut args);
        args
    }

    /// Replaces a part, the deeper the likelier.
    fn change(&mut self, key: &str, value: &mut Value, ty: &Type) {
        match (&mut *value, ty) {
            (Value::Object(fields), Type::Record(record)) if !self.one_in(6) => {
                let known: Vec<_> = record.fields().collect();
                if let Some(field) = self.pick(&known) {
                    let below = fields.entry(field.name).or_insert(Value::Null);
                    self.change(field.name, below, &field.ty);
                }
            }
            (Value::Array(items), Type::List(list)) if !items.is_empty() => {
                let at = self.chance.usize(..items.len());
                match self.chance.u32(..6) {
                    0 => drop(items.remove(at)),
                    1 if items.len() < ITEMS_MAX => items.push(items[at].clone()),
                    _ => self.change(key, &mut items[at], &list.ty()),
                }
            }
            (Value::Object(case), Type::Variant(variant)) if case.len() == 1 && !self.one_in(6) => {
                for (name, payload) in case.iter_mut() {
                    let known = variant.cases().find(|known| known.name == name);
                    if let Some(ty) = known.and_then(|known| known.ty) {
                        self.change(key, payload, &ty);
                    }
                }
            }
            (Value::Object(form), Type::List(list)) if matches!(list.ty(), Type::U8) => {
                match form.get_mut("json") {
                    Some(json) if !self.one_in(8) => self.change_json(json),
                    _ => *value = self.bytes(key),
                }
            }
            _ => *value = self.value(key, ty),
        }
    }

    fn change_json(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) if !fields.is_empty() && !self.one_in(6) => {
                let keys: Vec<String> = fields.keys().cloned().collect();
                let key = self.pick(&keys).cloned().unwrap_or_default();
                match self.chance.u32(..8) {
                    0 => drop(fields.shift_remove(&key)),
                    1 => drop(fields.insert(self.word(), self.json(1))),
                    _ => fields
                        .get_mut(&key)
                        .into_iter()
                        .for_each(|below| self.change_json(below)),
                }
            }
            Value::Array(items) if !items.is_empty() && !self.one_in(4) => {
                let at = self.chance.usize(..items.len());
                self.change_json(&mut items[at]);
            }
            _ => *value = self.json(1),
        }
    }

    fn value(&mut self, key: &str, ty: &Type) -> Value {
        match ty {
            Type::Bool => json!(self.chance.bool()),
            Type::U8 => json!(self.whole(key, u8::MAX.into())),
            Type::U16 => json!(self.whole(key, u16::MAX.into())),
            Type::U32 => json!(self.whole(key, u32::MAX.into())),
            Type::U64 => json!(self.whole(key, u64::MAX)),
            Type::S8 | Type::S16 | Type::S32 | Type::S64 => json!(self.whole(key, 127)),
            Type::Float32 | Type::Float64 => json!(self.quantity(key)),
            Type::Char => json!("x"),
            Type::String => self.text(key),
            Type::List(list) if matches!(list.ty(), Type::U8) => self.bytes(key),
            Type::List(list) => {
                let count = self.chance.usize(..=ITEMS_MAX);
                (0..count).map(|_| self.value(key, &list.ty())).collect()
            }
            Type::Tuple(tuple) => tuple.types().map(|ty| self.value(key, &ty)).collect(),
            Type::Record(record) => {
                let fields = record.fields();
                let made =
                    fields.map(|field| (field.name.to_owned(), self.value(field.name, &field.ty)));
                Value::Object(made.collect())
            }
            Type::Enum(cases) => {
                let names: Vec<&str> = cases.names().collect();
                json!(self.pick(&names))
            }
            Type::Flags(flags) => flags.names().filter(|_| self.chance.bool()).collect(),
            Type::Option(_) if self.chance.bool() => Value::Null,
            Type::Option(option) => self.value(key, &option.ty()),
            Type::Variant(variant) if key == "body" => {
                // The gateway hands over what the task selects: fields, or everything.
                let wanted = if self.wants.is_empty() {
                    "whole"
                } else {
                    "fields"
                };
                let case = variant.cases().find(|case| case.name == wanted);
                let payload = case.and_then(|case| case.ty);
                json!({ wanted: payload.map(|ty| self.value(key, &ty)) })
            }
            Type::Variant(variant) => {
                let cases: Vec<_> = variant.cases().collect();
                match self.pick(&cases) {
                    Some(case) => match &case.ty {
                        Some(ty) => json!({ case.name: self.value(key, ty) }),
                        None => json!(case.name),
                    },
                    None => Value::Null,
                }
            }
            _ => Value::Null,
        }
    }

    /// Edges are as likely as everything between them.
    fn whole(&mut self, key: &str, type_max: u64) -> u64 {
        let max = match key {
            "lora-affinity" | "prefix-affinity" => 1000,
            "status" => 599,
            "seed" => u64::MAX,
            _ if type_max == u64::MAX => 1 << 40,
            _ => type_max,
        };
        let min = if key == "status" { 100 } else { 0 };
        let small = self.chance.u64(min..=max.min(min + 100));
        let any = self.chance.u64(min..=max);
        *self.pick(&[min, max, small, any]).unwrap_or(&min)
    }

    fn quantity(&mut self, key: &str) -> f64 {
        let max = match key {
            "neurons" | "cost-per-infer" => 1e3,
            _ => 1e6,
        };
        let any = self.chance.f64() * max;
        *self
            .pick(&[0.0, 1.0, max, any, any.floor(), 1e-9])
            .unwrap_or(&0.0)
    }

    fn word(&mut self) -> String {
        self.pick(WORDS)
            .map(|word| (*word).to_owned())
            .unwrap_or_default()
    }

    fn text(&mut self, key: &str) -> Value {
        let text = match key {
            "content-type" => "application/json".to_owned(),
            "json" => self.json(0).to_string(),
            "pointer" => {
                let wants = self.wants.clone();
                self.pick(&wants).cloned().unwrap_or_default()
            }
            "name" | "metric" if self.one_in(2) => self
                .pick(METRICS)
                .map_or_else(String::new, |name| (*name).to_owned()),
            "name" | "metric" => format!("metric_{}", self.chance.u32(..50)),
            _ if self.one_in(100) => "long ".repeat(1000),
            _ => self.word(),
        };
        json!(text)
    }

    /// A hook's `state` is its own answer, so none is generated.
    fn bytes(&mut self, key: &str) -> Value {
        match self.chance.u32(..8) {
            _ if key == "state" => json!({ "text": "" }),
            0 => json!({ "text": "" }),
            1 => json!({ "text": self.word() }),
            2 => json!({ "base64": "//79AAECgA==" }),
            3 => json!({ "text": "{\"prompt\":" }),
            _ => json!({ "json": self.object(0) }),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let count = self.chance.usize(..4);
        let fields = (0..count).map(|_| (self.word(), self.json(depth + 1)));
        Value::Object(fields.collect())
    }

    fn json(&mut self, depth: usize) -> Value {
        match self.chance.u32(..if depth < DEPTH_MAX { 9 } else { 6 }) {
            0 => Value::Null,
            1 => json!(self.chance.bool()),
            2 => json!(self.chance.i64(-10..100_000)),
            3 => json!(self.chance.f64() * 1e3 - 1.0),
            4 | 5 => json!(self.word()),
            6 => (0..self.chance.usize(..4))
                .map(|_| self.json(depth + 1))
                .collect(),
            _ => self.object(depth),
        }
    }
}

/// Makes arguments keep the guarantees of the gateway.
fn keep_guarantees(hook: &str, args: &mut Map<String, Value>) {
    match hook {
        "rank" => {
            let candidates = args.get_mut("candidates").and_then(Value::as_array_mut);
            for (at, candidate) in candidates.into_iter().flatten().enumerate() {
                candidate["id"] = json!(at);
            }
        }
        "price" => {
            pricing::unite(args);
            once(args, "tariff", "coefficients", "metric");
            once(args, "usage", "metrics", "name");
        }
        _ => {}
    }
}

/// Drops items whose name is empty or was there before.
fn once(args: &mut Map<String, Value>, of: &str, list: &str, name: &str) {
    let items = args.get_mut(of).and_then(|of| of.get_mut(list));
    let mut seen = vec![json!("")];
    if let Some(items) = items.and_then(Value::as_array_mut) {
        items.retain(|item| {
            let is_new = !seen.contains(&item[name]);
            seen.push(item[name].clone());
            is_new
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_bodies() {
        let bodies = |seed| {
            let mut generator = ArgGenerator::new(seed, Vec::new());
            (0..50).map(|_| generator.bytes("body")).collect::<Vec<_>>()
        };
        assert_eq!(bodies(7), bodies(7));
        assert_ne!(bodies(7), bodies(8));
    }

    #[test]
    fn candidates_are_numbered_and_names_are_there_once() {
        let mut args = json!({ "candidates": [{ "id": 7 }, { "id": 7 }] });
        let args = args.as_object_mut().unwrap();
        keep_guarantees("rank", args);
        assert_eq!(args["candidates"], json!([{ "id": 0 }, { "id": 1 }]));
        let mut args = json!({
            "tariff": { "coefficients": [{ "metric": "a" }, { "metric": "a" }] },
            "usage": { "metrics": [{ "name": "b" }, { "name": "c" }, { "name": "b" }] },
        });
        let args = args.as_object_mut().unwrap();
        keep_guarantees("price", args);
        assert_eq!(args["tariff"]["coefficients"].as_array().unwrap().len(), 1);
        assert_eq!(args["usage"]["metrics"].as_array().unwrap().len(), 2);
    }
}
