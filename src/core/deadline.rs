//! The one deadline of a request: it covers queue, backend and the whole stream.
//!
//! Not a timer: the shell selects on the moment computed here. Known in the source system as the
//! inference timeout under the entry's hard ceiling.

use crate::Millis;

/// `timeouts` of the configuration, as far as the deadline needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlineRule {
    /// Least timeout of any model, seconds.
    pub model_floor_secs: u64,
    /// Most time of any request, seconds.
    pub ceiling_secs: u64,
    /// Most time of the requests of a client, by its profile, seconds.
    pub profile_secs: Option<u64>,
}

/// The rule that decided a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineBound {
    /// The model's own timeout.
    Model,
    /// The floor under every model's timeout.
    Floor,
    /// The ceiling over every request.
    Ceiling,
    /// The profile of the client.
    Profile,
    /// The caller asked for less.
    Caller,
}

impl DeadlineBound {
    /// The name in events and `/explain`.
    pub const fn name(self) -> &'static str {
        match self {
            DeadlineBound::Model => "model",
            DeadlineBound::Floor => "floor",
            DeadlineBound::Ceiling => "ceiling",
            DeadlineBound::Profile => "profile",
            DeadlineBound::Caller => "caller",
        }
    }
}

impl DeadlineRule {
    /// Returns the rule behind [`DeadlineRule::deadline`]; among equal ones the first of model, floor,
    /// ceiling, profile and caller.
    pub fn bound(self, model_secs: u64, requested: Option<Millis>) -> DeadlineBound {
        let span = self.deadline(Millis::ZERO, model_secs, None);
        if requested.is_some_and(|requested| requested < span) {
            return DeadlineBound::Caller;
        }
        let without = DeadlineRule {
            profile_secs: None,
            ..self
        };
        if span < without.deadline(Millis::ZERO, model_secs, None) {
            return DeadlineBound::Profile;
        }
        match span {
            span if span == Millis::from_secs(model_secs) => DeadlineBound::Model,
            span if span == Millis::from_secs(self.model_floor_secs) => DeadlineBound::Floor,
            _ => DeadlineBound::Ceiling,
        }
    }

    /// `arrival + min(max(model, floor), ceiling, profile, requested)`. Profile and caller may ask for less than the
    /// floor.
    pub fn deadline(self, arrival: Millis, model_secs: u64, requested: Option<Millis>) -> Millis {
        let model = model_secs.max(self.model_floor_secs).min(self.ceiling_secs);
        let span = Millis::from_secs(self.profile_secs.map_or(model, |secs| secs.min(model)));
        arrival + requested.map_or(span, |requested| requested.min(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: DeadlineRule = DeadlineRule {
        model_floor_secs: 30,
        ceiling_secs: 240,
        profile_secs: None,
    };

    #[test]
    fn model_timeout_is_raised_to_the_floor_and_cut_at_the_ceiling() {
        let at = |secs| RULE.deadline(Millis(5), secs, None);
        assert_eq!(at(0), Millis(30_005));
        assert_eq!(at(60), Millis(60_005));
        assert_eq!(at(300), Millis(240_005));
    }

    #[test]
    fn a_deadline_names_what_made_it() {
        let bound = |secs, requested: Option<u64>| RULE.bound(secs, requested.map(Millis));
        assert_eq!(bound(60, None), DeadlineBound::Model);
        assert_eq!(bound(30, None), DeadlineBound::Model);
        assert_eq!(bound(1, None), DeadlineBound::Floor);
        assert_eq!(bound(241, None), DeadlineBound::Ceiling);
        assert_eq!(bound(60, Some(60_000)), DeadlineBound::Model);
        assert_eq!(bound(60, Some(59_999)), DeadlineBound::Caller);
        assert_eq!(bound(1, Some(29_999)), DeadlineBound::Caller);
        let no_room = DeadlineRule {
            model_floor_secs: 300,
            ..RULE
        };
        assert_eq!(no_room.bound(1, None), DeadlineBound::Ceiling);
    }

    #[test]
    fn a_profile_shortens_and_never_lengthens() {
        let profile = |secs| DeadlineRule {
            profile_secs: Some(secs),
            ..RULE
        };
        let at = |secs, model, requested: Option<u64>| {
            let (rule, requested) = (profile(secs), requested.map(Millis));
            let span = rule.deadline(Millis(0), model, requested);
            (span.0, rule.bound(model, requested))
        };
        assert_eq!(at(5, 60, None), (5_000, DeadlineBound::Profile));
        assert_eq!(
            at(5, 5, None),
            (5_000, DeadlineBound::Profile),
            "below the floor"
        );
        assert_eq!(at(60, 60, None), (60_000, DeadlineBound::Model));
        assert_eq!(at(300, 60, None), (60_000, DeadlineBound::Model));
        assert_eq!(at(300, 500, None), (240_000, DeadlineBound::Ceiling));
        assert_eq!(at(5, 60, Some(4_999)), (4_999, DeadlineBound::Caller));
        assert_eq!(at(5, 60, Some(9_000)), (5_000, DeadlineBound::Profile));
    }

    #[test]
    fn callers_wish_may_go_below_the_floor_but_never_above() {
        let requested = |ms| RULE.deadline(Millis(0), 60, Some(Millis(ms)));
        assert_eq!(requested(50), Millis(50));
        assert_eq!(requested(90_000), Millis(60_000));
    }
}
