//! A pass over a JSON text by a plan.
//!
//! Checks no grammar: the text is known to be JSON. On other bytes the pass ends with any verdict, but ends. A
//! number or a text is read only where a shape looks at it; of other texts only the end is searched.

use std::ops::{Range, RangeInclusive};
use std::sync::LazyLock;

use infergate_core::api::body::string_end;

use super::names::NameStack;
use super::number::WrittenNumber;
use super::plan::{Edge, NameHash, Place, ScalarOption, SchemaPlan, ValueKind};
use crate::plugin::json::outline::{DEPTH_MAX, PARTS_MAX};

/// Steps of a pass: for each byte, …
const STEPS_PER_BYTE: u64 = 4;
/// … and for a short text. Both are a part of what the validator may take, which follows when they are spent.
const STEPS_MIN: u64 = 100_000;
/// Bytes of a text that are counted in one step.
const STRING_BYTES_PER_STEP: u64 = 4;
/// Most bytes that one character takes: two escapes of a surrogate each.
const CHARACTER_BYTES_MAX: u64 = 12;
/// Words of a text that are searched before the search by vectors begins.
const WORDS_FIRST: usize = 2;

/// The pass cannot tell.
struct Unsure;

impl SchemaPlan {
    /// Returns whether a JSON text certainly fits: the validator would accept it. No name stands twice in one
    /// object then, and parts and nesting are within the bounds of an outline.
    pub(crate) fn accepts(&self, text: &[u8]) -> bool {
        self.accepts_within(text, u64::MAX)
    }

    /// As [`SchemaPlan::accepts`], in so many steps at most; false where they do not suffice.
    pub(crate) fn accepts_within(&self, text: &[u8], steps_max: u64) -> bool {
        let mut pass = Pass {
            plan: self,
            text,
            at: 0,
            depth_left: DEPTH_MAX,
            parts_left: PARTS_MAX,
            steps_left: steps_max.min(STEPS_MIN + STEPS_PER_BYTE * text.len() as u64),
            names: NameStack::default(),
        };
        let is_indexable = u32::try_from(text.len()).is_ok();
        is_indexable && matches!(pass.follow(&self.root), Ok(0))
    }
}

/// Plan that accepts each JSON text that certainly has an index: its parts and its nesting are within the bounds.
pub(crate) static INDEXABLE: LazyLock<SchemaPlan> = LazyLock::new(SchemaPlan::of_any);

struct Pass<'a> {
    plan: &'a SchemaPlan,
    text: &'a [u8],
    at: usize,
    depth_left: usize,
    /// Containers and members that may still come.
    parts_left: usize,
    steps_left: u64,
    /// Names that the schema does not know, of each object that is open.
    names: NameStack,
}

impl<'a> Pass<'a> {
    /// Reads a value. Returns the shapes of the container that it breaks.
    #[inline]
    fn follow(&mut self, edge: &Edge) -> Result<u64, Unsure> {
        let plan = self.plan;
        let place = &plan.places[edge.place];
        self.spend(place.steps)?;
        let failed = match self.peek()? {
            b'"' => self.string(place)?,
            b'{' => self.object(place)?,
            b'[' => self.array(place)?,
            b't' => self.literal(place, 4, ValueKind::Boolean, &ScalarOption::Boolean(true)),
            b'f' => self.literal(place, 5, ValueKind::Boolean, &ScalarOption::Boolean(false)),
            b'n' => self.literal(place, 4, ValueKind::Null, &ScalarOption::Null),
            _ => self.number(place)?,
        };
        match failed == 0 && place.fits_unbroken {
            true => Ok(0),
            false => Ok(edge.broken(place, failed)),
        }
    }

    fn spend(&mut self, steps: u64) -> Result<(), Unsure> {
        self.steps_left = self.steps_left.checked_sub(steps).ok_or(Unsure)?;
        Ok(())
    }

    fn part(&mut self) -> Result<(), Unsure> {
        self.parts_left = self.parts_left.checked_sub(1).ok_or(Unsure)?;
        Ok(())
    }

    /// The next byte that is no space.
    #[inline]
    fn peek(&mut self) -> Result<u8, Unsure> {
        match self.text.get(self.at) {
            Some(byte) if *byte > b' ' => Ok(*byte),
            Some(_) => self.peek_behind_space(),
            None => Err(Unsure),
        }
    }

    #[inline(never)]
    fn peek_behind_space(&mut self) -> Result<u8, Unsure> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let spaces = rest.iter().take_while(|byte| **byte <= b' ').count();
        self.at += spaces;
        rest.get(spaces).copied().ok_or(Unsure)
    }

    /// Passes the comma before another value, or the end of a container: true when another value comes.
    #[inline]
    fn goes_on(&mut self, end: u8) -> Result<bool, Unsure> {
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b',' => Ok(true),
            byte if byte == end => Ok(false),
            _ => Err(Unsure),
        }
    }

    #[inline(never)]
    fn object(&mut self, place: &'a Place) -> Result<u64, Unsure> {
        self.enter()?;
        let own_names = self.names.len;
        let mut failed = place.wrong_kind[ValueKind::Object as usize];
        let mut seen = 0_u64;
        let mut count = 0;
        let mut goes_on = self.peek()? != b'}' || self.goes_on(b'}')?;
        while goes_on {
            count += 1;
            self.part()?;
            let (hash, name) = self.name()?;
            let edge = match place.names.find(hash, name) {
                Some((index, edge)) => {
                    let bit = 1 << index;
                    if seen & bit != 0 {
                        return Err(Unsure);
                    }
                    seen |= bit;
                    edge
                }
                None => {
                    self.names.push(hash);
                    &place.others
                }
            };
            failed |= self.follow(edge)?;
            goes_on = self.goes_on(b'}')?;
        }
        if self.names.len > own_names && !self.names.leave(own_names) {
            return Err(Unsure);
        }
        self.depth_left += 1;
        for (wanted, shapes) in &place.required {
            if seen & wanted != *wanted {
                failed |= shapes;
            }
        }
        Ok(failed | broken_ranges(&place.member_counts, count))
    }

    #[inline(never)]
    fn array(&mut self, place: &'a Place) -> Result<u64, Unsure> {
        self.enter()?;
        let mut failed = place.wrong_kind[ValueKind::Array as usize];
        let mut count = 0;
        let mut goes_on = self.peek()? != b']' || self.goes_on(b']')?;
        while goes_on {
            count += 1;
            failed |= self.follow(&place.items)?;
            goes_on = self.goes_on(b']')?;
        }
        self.depth_left += 1;
        Ok(failed | broken_ranges(&place.item_counts, count))
    }

    /// Passes the bracket of a container.
    fn enter(&mut self) -> Result<(), Unsure> {
        self.part()?;
        self.at += 1;
        self.depth_left = self.depth_left.checked_sub(1).ok_or(Unsure)?;
        Ok(())
    }

    /// Reads the name of a member and passes its colon. A name with escapes is not read.
    #[inline]
    fn name(&mut self) -> Result<(u64, &'a [u8]), Unsure> {
        let text = self.text;
        if self.peek()? != b'"' {
            return Err(Unsure);
        }
        let start = self.at + 1;
        let mut at = start;
        let mut hash = NameHash::begin();
        let end = loop {
            let word = word_at(text, at).ok_or(Unsure)?;
            let stop = bytes_of(word, b'"') | bytes_of(word, b'\\');
            if stop != 0 {
                let bits = stop.trailing_zeros() & !7;
                if bits > 0 {
                    hash.add(word & ((1 << bits) - 1));
                }
                break at + bits as usize / 8;
            }
            hash.add(word);
            at += 8;
        };
        let name = text.get(start..end).ok_or(Unsure)?;
        self.at = end + 1;
        if text.get(end) != Some(&b'"') || self.peek()? != b':' {
            return Err(Unsure);
        }
        self.at += 1;
        Ok((hash.end(name.len()), name))
    }

    #[inline]
    fn string(&mut self, place: &Place) -> Result<u64, Unsure> {
        let start = self.at + 1;
        let end = end_of_string(self.text, start).ok_or(Unsure)?;
        self.at = end + 1;
        let failed = place.wrong_kind[ValueKind::String as usize];
        match place.reads_strings {
            true => Ok(failed | self.broken_by_text(place, start..end)?),
            false => Ok(failed),
        }
    }

    /// The shapes that a text breaks by its length or its characters.
    #[inline(never)]
    fn broken_by_text(&mut self, place: &Place, range: Range<usize>) -> Result<u64, Unsure> {
        let inner = &self.text[range];
        let bytes = inner.len() as u64;
        let (least, most) = (bytes.div_ceil(CHARACTER_BYTES_MAX), bytes);
        let mut failed = 0;
        for (range, shapes) in &place.lengths {
            let is_within = if range.contains(&least) && range.contains(&most) {
                true
            } else if most < *range.start() || least > *range.end() {
                false
            } else {
                range.contains(&self.characters(inner)?)
            };
            if !is_within {
                failed |= shapes;
            }
        }
        if place.options.is_empty() {
            return Ok(failed);
        }
        // A text with escapes may stand for any.
        if memchr::memchr(b'\\', inner).is_some() {
            return Err(Unsure);
        }
        let is_text = |option: &ScalarOption| matches!(option, ScalarOption::Text(text) if text.as_bytes() == inner);
        Ok(failed | broken_options(place, is_text))
    }

    /// Characters of a text without escapes.
    fn characters(&mut self, inner: &[u8]) -> Result<u64, Unsure> {
        self.spend(inner.len() as u64 / STRING_BYTES_PER_STEP)?;
        if memchr::memchr(b'\\', inner).is_some() {
            return Err(Unsure);
        }
        let begins = |byte: &&u8| **byte & 0xC0 != 0x80;
        Ok(inner.iter().filter(begins).count() as u64)
    }

    #[inline]
    fn literal(
        &mut self,
        place: &Place,
        bytes: usize,
        kind: ValueKind,
        value: &ScalarOption,
    ) -> u64 {
        self.at += bytes;
        let failed = place.wrong_kind[kind as usize];
        match place.options.is_empty() {
            true => failed,
            false => failed | broken_options(place, |option| option == value),
        }
    }

    #[inline(never)]
    fn number(&mut self, place: &Place) -> Result<u64, Unsure> {
        let number = WrittenNumber::at(self.text, self.at);
        if number.end == self.at {
            return Err(Unsure);
        }
        let raw = &self.text[self.at..number.end];
        self.at = number.end;
        if !place.reads_numbers {
            return Ok(place.wrong_kind[ValueKind::Integer as usize]);
        }
        let value = number.value(raw).ok_or(Unsure)?;
        let kind = match number.is_whole || value.fract() == 0.0 {
            true => ValueKind::Integer,
            false => ValueKind::Fraction,
        };
        let mut failed = place.wrong_kind[kind as usize];
        for (limit, shapes) in &place.limits {
            if !limit.admits(value) {
                failed |= shapes;
            }
        }
        Ok(failed | broken_options(place, |option| *option == ScalarOption::Integer(value)))
    }
}

impl Edge {
    /// The shapes of the container that a value breaks, by the shapes of its own place that it breaks.
    #[inline(never)]
    fn broken(&self, place: &Place, failed: u64) -> u64 {
        let broken = self
            .asked
            .iter()
            .filter(|(asked, _)| !place.verdicts[*asked].holds(failed));
        broken.fold(0, |all, (_, shapes)| all | shapes)
    }
}

/// The shapes whose bounds a count is not within.
#[inline]
fn broken_ranges(ranges: &[(RangeInclusive<u64>, u64)], count: u64) -> u64 {
    let broken = ranges.iter().filter(|(range, _)| !range.contains(&count));
    broken.fold(0, |all, (_, shapes)| all | shapes)
}

/// The shapes whose `enum` or `const` has no value that `is_it`.
#[inline]
fn broken_options(place: &Place, is_it: impl Fn(&ScalarOption) -> bool) -> u64 {
    let broken = place
        .options
        .iter()
        .filter(|(options, _)| !options.iter().any(&is_it));
    broken.fold(0, |all, (_, shapes)| all | shapes)
}

/// The 8 bytes from `at` on, the first one lowest; zeros stand behind the end of the text.
#[inline]
fn word_at(text: &[u8], at: usize) -> Option<u64> {
    let rest = text.get(at..)?;
    if let Some(word) = rest.first_chunk() {
        return Some(u64::from_le_bytes(*word));
    }
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    (!rest.is_empty()).then_some(u64::from_le_bytes(word))
}

/// The top bit of each byte of `word` that is `byte`. Bytes above the lowest such byte may be marked wrongly.
#[inline]
fn bytes_of(word: u64, byte: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let zero_where = word ^ (ONES * u64::from(byte));
    zero_where.wrapping_sub(ONES) & !zero_where & (ONES << 7)
}

/// The quote that ends a text whose first byte is at `at`. Most are short and have no escape.
#[inline]
fn end_of_string(text: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..WORDS_FIRST {
        let word = word_at(text, at)?;
        let found = bytes_of(word, b'"') | bytes_of(word, b'\\');
        if found != 0 {
            at += found.trailing_zeros() as usize / 8;
            return match text[at] {
                b'"' => Some(at),
                _ => string_end(text, at),
            };
        }
        at += 8;
    }
    string_end(text, at)
}
