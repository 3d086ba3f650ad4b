//! Plans of schemas: which subschemas look at which place of a body.
//!
//! Not the whole of JSON Schema 2020-12: a schema with another keyword, or of another version, has no plan. The
//! subschemas that look at one value are found from the outside in, as sets. Equal sets share a place, so that a
//! schema that refers to itself has finitely many. A plan has at most [`PARTS_MAX`] parts.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::plan::{
    Edge, Formula, NAMES_MAX, NameTable, NumberLimit, Place, SHAPES_MAX, ScalarOption, SchemaPlan,
    ValueKind,
};

/// Places, shapes, names and conditions together. The largest schema that is shipped has 150.
const PARTS_MAX: usize = 4_000;
/// Conditions within each other.
const NESTING_MAX: usize = 50;
/// Values of an `enum` that are compared in one step.
const OPTIONS_PER_STEP: usize = 4;
/// Whole numbers up to here are exact as floats.
const EXACT_MAX: u64 = 1 << 53;

/// Keywords that assert nothing by themselves.
const SILENT: &[&str] = &[
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "else",
    "examples",
    "format",
    "readOnly",
    "then",
    "title",
    "writeOnly",
];
/// Keywords about the value itself and the ways into it.
const OWN: &[&str] = &[
    "additionalProperties",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "properties",
    "required",
    "type",
];
/// Keywords whose subschemas look at the same value.
const IN_PLACE: &[&str] = &["$ref", "allOf", "anyOf", "if", "not", "oneOf"];

impl SchemaPlan {
    /// The plan of a schema that the validator takes; none where a keyword has no fast check.
    pub(crate) fn of(root: &Value) -> Option<SchemaPlan> {
        let version = root.get("$schema").and_then(Value::as_str);
        let is_known = version.is_none_or(|version| {
            version.trim_end_matches('#') == "https://json-schema.org/draft/2020-12/schema"
        });
        let compiler = PlanCompiler {
            root,
            places: Vec::new(),
            known: HashMap::new(),
            waiting: Vec::new(),
            parts_left: PARTS_MAX,
        };
        is_known.then(|| compiler.run(vec![root]))?
    }

    /// The plan that asks for nothing.
    pub(crate) fn of_any() -> SchemaPlan {
        let plan = SchemaPlan::of(&Value::Bool(true));
        plan.expect("`true` is a schema without keywords")
    }
}

/// Subschemas that look at one value.
type Subschemas<'a> = Vec<&'a Value>;

struct PlanCompiler<'a> {
    root: &'a Value,
    places: Vec<Place>,
    /// Places by the addresses of the subschemas that are asked for there.
    known: HashMap<Vec<usize>, usize>,
    /// Places that are named and not made yet.
    waiting: Vec<(usize, Subschemas<'a>)>,
    parts_left: usize,
}

impl<'a> PlanCompiler<'a> {
    fn run(mut self, root: Subschemas<'a>) -> Option<SchemaPlan> {
        let root = Edge {
            place: self.place_of(root)?,
            asked: vec![(0, 1)],
        };
        while let Some((index, asked)) = self.waiting.pop() {
            self.places[index] = self.place(&asked)?;
        }
        Some(SchemaPlan {
            places: self.places,
            root,
        })
    }

    fn spend(&mut self, parts: usize) -> Option<()> {
        self.parts_left = self.parts_left.checked_sub(parts)?;
        Some(())
    }

    fn place_of(&mut self, asked: Subschemas<'a>) -> Option<usize> {
        let addresses = asked.iter().map(|one| std::ptr::from_ref(*one).addr());
        let key: Vec<usize> = addresses.collect();
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        self.spend(1 + asked.len())?;
        let index = self.places.len();
        self.places.push(Place::default());
        self.known.insert(key, index);
        self.waiting.push((index, asked));
        Some(index)
    }

    fn place(&mut self, asked: &[&'a Value]) -> Option<Place> {
        let mut shapes = Vec::new();
        let mut place = Place::default();
        for subschema in asked {
            let verdict = self.formula(subschema, &mut shapes, 0)?;
            place.verdicts.push(verdict);
        }
        place.fits_unbroken = place.verdicts.iter().all(|verdict| verdict.holds(0));
        for (index, shape) in shapes.iter().enumerate() {
            add_own(&mut place, shape, 1 << index)?;
        }
        let options: usize = place.options.iter().map(|(options, _)| options.len()).sum();
        place.steps = 1 + (shapes.len() + options / OPTIONS_PER_STEP) as u64;
        let is_decided = place.wrong_kind[ValueKind::Integer as usize]
            == place.wrong_kind[ValueKind::Fraction as usize];
        place.reads_strings = !place.lengths.is_empty() || !place.options.is_empty();
        place.reads_numbers = !is_decided || !place.limits.is_empty() || !place.options.is_empty();
        place.items = self.edge(&shapes, |shape| shape.get("items"))?;
        place.others = self.edge(&shapes, |shape| shape.get("additionalProperties"))?;
        self.add_names(&mut place, &shapes)?;
        Some(place)
    }

    /// The condition under which a value fits a subschema. Shapes that it consists of are added to `shapes`.
    fn formula(
        &mut self,
        subschema: &'a Value,
        shapes: &mut Vec<&'a Map<String, Value>>,
        depth: usize,
    ) -> Option<Formula> {
        self.spend(1)?;
        let object = match subschema {
            Value::Bool(true) => return Some(Formula::Unbroken(0)),
            Value::Bool(false) => return Some(Formula::Never),
            Value::Object(object) if depth < NESTING_MAX => object,
            _ => return None,
        };
        let is_known = |key: &String| {
            let mut all = [OWN, IN_PLACE, SILENT].into_iter().flatten();
            all.any(|known| known == key)
        };
        let is_base = std::ptr::eq(subschema, self.root);
        let is_moved = object.contains_key("$id") || object.contains_key("$schema");
        if !object.keys().all(is_known) || (is_moved && !is_base) {
            return None;
        }
        let mut own = 0;
        if object.keys().any(|key| OWN.contains(&key.as_str())) {
            own = shape_of(object, shapes)?;
        }
        let mut parts = Vec::new();
        for (key, value) in object {
            let part = match key.as_str() {
                "$ref" => self.formula(self.target(value)?, shapes, depth + 1)?,
                "allOf" => Formula::All(self.formulas(value, shapes, depth)?),
                "anyOf" => Formula::Any(self.formulas(value, shapes, depth)?),
                "oneOf" => Formula::One(self.formulas(value, shapes, depth)?),
                "not" => Formula::Not(Box::new(self.formula(value, shapes, depth + 1)?)),
                "if" => {
                    let mut branch = |key: &str| match object.get(key) {
                        Some(branch) => self.formula(branch, shapes, depth + 1),
                        None => Some(Formula::Unbroken(0)),
                    };
                    Formula::If(Box::new([branch("if")?, branch("then")?, branch("else")?]))
                }
                _ => continue,
            };
            add_part(part, &mut own, &mut parts);
        }
        if parts.is_empty() {
            return Some(Formula::Unbroken(own));
        }
        parts.insert(0, Formula::Unbroken(own));
        Some(Formula::All(parts))
    }

    fn formulas(
        &mut self,
        list: &'a Value,
        shapes: &mut Vec<&'a Map<String, Value>>,
        depth: usize,
    ) -> Option<Vec<Formula>> {
        let list = list.as_array()?.iter();
        list.map(|one| self.formula(one, shapes, depth + 1))
            .collect()
    }

    /// The subschema that a reference names by its place.
    fn target(&self, reference: &Value) -> Option<&'a Value> {
        let place = reference.as_str()?.strip_prefix('#')?;
        let is_plain = (place.is_empty() || place.starts_with('/')) && !place.contains('%');
        self.root.pointer(place).filter(|_| is_plain)
    }

    /// The way to values that each shape finds its subschema for by `below`.
    fn edge(
        &mut self,
        shapes: &[&'a Map<String, Value>],
        below: impl Fn(&'a Map<String, Value>) -> Option<&'a Value>,
    ) -> Option<Edge> {
        let mut asked: Subschemas<'a> = Vec::new();
        let mut edge = Edge::default();
        for (index, shape) in shapes.iter().enumerate() {
            let Some(subschema) = below(shape) else {
                continue;
            };
            let known = asked.iter().position(|one| std::ptr::eq(*one, subschema));
            match known {
                Some(at) => edge.asked[at].1 |= 1 << index,
                None => {
                    edge.asked.push((asked.len(), 1 << index));
                    asked.push(subschema);
                }
            }
        }
        edge.place = self.place_of(asked)?;
        Some(edge)
    }

    /// Adds the members that shapes name, and those that they require.
    fn add_names(&mut self, place: &mut Place, shapes: &[&'a Map<String, Value>]) -> Option<()> {
        let mut names: Vec<&'a str> = Vec::new();
        let mut index_of = |name: &'a str| {
            let known = names.iter().position(|one| *one == name);
            known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            })
        };
        for (index, shape) in shapes.iter().enumerate() {
            let mut wanted = 0_u64;
            for name in shape
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                wanted |= 1_u64.checked_shl(index_of(name.as_str()?) as u32)?;
            }
            if wanted != 0 {
                place.required.push((wanted, 1 << index));
            }
            for name in properties(shape).into_iter().flat_map(Map::keys) {
                index_of(name);
            }
        }
        if names.len() > NAMES_MAX {
            return None;
        }
        self.spend(names.len())?;
        let mut table = Vec::with_capacity(names.len());
        for name in names {
            let edge = self.edge(shapes, |shape| {
                let own = properties(shape).and_then(|own| own.get(name));
                own.or_else(|| shape.get("additionalProperties"))
            })?;
            table.push((name, edge));
        }
        place.names = NameTable::new(table);
        Some(())
    }
}

fn properties(shape: &Map<String, Value>) -> Option<&Map<String, Value>> {
    shape.get("properties")?.as_object()
}

/// The bit of a subschema's own keywords.
fn shape_of<'a>(
    object: &'a Map<String, Value>,
    shapes: &mut Vec<&'a Map<String, Value>>,
) -> Option<u64> {
    let known = shapes.iter().position(|one| std::ptr::eq(*one, object));
    let index = known.unwrap_or_else(|| {
        shapes.push(object);
        shapes.len() - 1
    });
    (index < SHAPES_MAX).then(|| 1 << index)
}

/// Adds a condition that must hold; those of shapes alone become one with `own`.
fn add_part(part: Formula, own: &mut u64, parts: &mut Vec<Formula>) {
    match part {
        Formula::Unbroken(more) => *own |= more,
        Formula::All(list) => list.into_iter().for_each(|part| add_part(part, own, parts)),
        other => parts.push(other),
    }
}

/// Adds what a shape asserts of the value itself.
fn add_own(place: &mut Place, shape: &Map<String, Value>, bit: u64) -> Option<()> {
    for (key, value) in shape {
        match key.as_str() {
            "type" => add_type(place, value, bit)?,
            "enum" => add_options(place, options(value.as_array()?)?, bit),
            "const" => add_options(place, options(std::slice::from_ref(value))?, bit),
            "minLength" => place.lengths.push((value.as_u64()?..=u64::MAX, bit)),
            "maxLength" => place.lengths.push((0..=value.as_u64()?, bit)),
            "minItems" => place.item_counts.push((value.as_u64()?..=u64::MAX, bit)),
            "maxItems" => place.item_counts.push((0..=value.as_u64()?, bit)),
            "minProperties" => place.member_counts.push((value.as_u64()?..=u64::MAX, bit)),
            "maxProperties" => place.member_counts.push((0..=value.as_u64()?, bit)),
            "minimum" => place
                .limits
                .push((NumberLimit::AtLeast(exact(value)?), bit)),
            "maximum" => place.limits.push((NumberLimit::AtMost(exact(value)?), bit)),
            "exclusiveMinimum" => place
                .limits
                .push((NumberLimit::MoreThan(exact(value)?), bit)),
            "exclusiveMaximum" => place
                .limits
                .push((NumberLimit::LessThan(exact(value)?), bit)),
            _ => {}
        }
    }
    Some(())
}

fn add_type(place: &mut Place, types: &Value, bit: u64) -> Option<()> {
    let single = std::slice::from_ref(types);
    let list = types.as_array().map_or(single, Vec::as_slice);
    let mut allowed = [false; 7];
    for one in list {
        let kinds: &[ValueKind] = match one.as_str()? {
            "null" => &[ValueKind::Null],
            "boolean" => &[ValueKind::Boolean],
            "integer" => &[ValueKind::Integer],
            "number" => &[ValueKind::Integer, ValueKind::Fraction],
            "string" => &[ValueKind::String],
            "array" => &[ValueKind::Array],
            "object" => &[ValueKind::Object],
            _ => return None,
        };
        for kind in kinds {
            allowed[*kind as usize] = true;
        }
    }
    allow_kinds(place, allowed, bit);
    Some(())
}

fn allow_kinds(place: &mut Place, allowed: [bool; 7], bit: u64) {
    for (wrong, allowed) in place.wrong_kind.iter_mut().zip(allowed) {
        if !allowed {
            *wrong |= bit;
        }
    }
}

fn add_options(place: &mut Place, options: Vec<ScalarOption>, bit: u64) {
    let mut allowed = [false; 7];
    for option in &options {
        let kind = match option {
            ScalarOption::Null => ValueKind::Null,
            ScalarOption::Boolean(_) => ValueKind::Boolean,
            ScalarOption::Integer(_) => ValueKind::Integer,
            ScalarOption::Text(_) => ValueKind::String,
        };
        allowed[kind as usize] = true;
    }
    allow_kinds(place, allowed, bit);
    place.options.push((options, bit));
}

/// Values that a pass can compare with; none where a list or an object is among them.
fn options(values: &[Value]) -> Option<Vec<ScalarOption>> {
    let scalar = |value: &Value| match value {
        Value::Null => Some(ScalarOption::Null),
        Value::Bool(value) => Some(ScalarOption::Boolean(*value)),
        Value::String(text) => Some(ScalarOption::Text(text.as_str().into())),
        Value::Number(number) if number.is_i64() => exact(value).map(ScalarOption::Integer),
        Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    };
    values.iter().map(scalar).collect()
}

/// A number that is exact as a float.
fn exact(value: &Value) -> Option<f64> {
    match value.as_i64() {
        Some(whole) => (whole.unsigned_abs() <= EXACT_MAX).then_some(whole as f64),
        None if value.is_u64() => None,
        None => value.as_f64(),
    }
}
