//! Which model is asked next when one does not serve a request: its ladder, from the top down.
//!
//! It asks nobody and knows no model by name. One request goes down once: a model that was left is
//! not come back to, and the ladders of the models below do not count. All of them together have the
//! tries and the deadline of the one request. Nothing here is asked after the first byte of an
//! answer, nor once a server may have begun to work. Known in the source system as the candidates of
//! a task; there, too, the guard keeps to the places after the first.

use super::TRIES_MAX;

/// A model below the first, as far as a ladder looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// The account may use it.
    pub is_allowed: bool,
    /// Its servers are somebody else's.
    pub is_external: bool,
}

impl Rung {
    /// Whether a request may come down to it. The first model is never asked this: who names an
    /// external model, or configures one on top, means it.
    pub fn is_open(self, allow_cloud_fallback: bool) -> bool {
        self.is_allowed && (allow_cloud_fallback || !self.is_external)
    }
}

/// Why a model did not serve a request that another one may be asked to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// It has no room: permits and queue are full, or the wait would be too long.
    OutOfCapacity,
    /// None of its servers is fit.
    Unhealthy,
    /// Its servers failed before they began to work.
    Failed,
}

impl Missed {
    /// Every reason, in the order of its metric series.
    pub const ALL: [Missed; 3] = [Missed::OutOfCapacity, Missed::Unhealthy, Missed::Failed];

    /// Its name on a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Missed::OutOfCapacity => "out-of-capacity",
            Missed::Unhealthy => "unhealthy",
            Missed::Failed => "failed",
        }
    }
}

/// One request's way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descent {
    is_pinned: bool,
    at_top: bool,
    below: usize,
}

impl Descent {
    /// At the first model, with so many open rungs below it.
    pub fn begin(pin_primary: bool, below: usize) -> Descent {
        Descent {
            is_pinned: pin_primary,
            at_top: true,
            below,
        }
    }

    /// Whether it may go on once the present model has missed.
    pub fn may_leave(&self, missed: Missed, tries: u32) -> bool {
        self.ways_on(missed) > 0 && tries < TRIES_MAX
    }

    /// Open rungs below that a request may go on to which the present model has missed.
    fn ways_on(&self, missed: Missed) -> usize {
        let waits = self.is_pinned && self.at_top && missed != Missed::Failed;
        if waits { 0 } else { self.below }
    }

    /// It has gone down to a rung that has so many open ones below.
    pub fn goes_down(&mut self, below: usize) {
        self.at_top = false;
        self.below = below;
    }

    /// Whether the present model, which has missed, may make another try of its own after `tries` of
    /// the whole request. As long as there is a rung to go on to, one try is kept for it, and none is
    /// made at a server that has failed this request before: `has_fresh` says that there are others.
    pub fn may_try_again(&self, missed: Missed, tries: u32, has_fresh: bool) -> bool {
        match self.ways_on(missed) {
            0 => tries < TRIES_MAX,
            _ => has_fresh && tries + 1 < TRIES_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_guard_takes_external_models_off_and_the_account_those_it_may_not_use() {
        let rung = |is_allowed, is_external| Rung {
            is_allowed,
            is_external,
        };
        assert!(rung(true, false).is_open(false));
        assert!(rung(true, true).is_open(true));
        assert!(!rung(true, true).is_open(false));
        assert!(!rung(false, false).is_open(true));
        assert!(!rung(false, true).is_open(true));
    }

    #[test]
    fn a_pinned_model_is_left_when_it_fails_and_not_for_want_of_room() {
        let mut descent = Descent::begin(true, 2);
        assert!(!descent.may_leave(Missed::OutOfCapacity, 0));
        assert!(!descent.may_leave(Missed::Unhealthy, 0));
        assert!(descent.may_leave(Missed::Failed, 1));
        descent.goes_down(1);
        assert!(descent.may_leave(Missed::OutOfCapacity, 1));
    }

    #[test]
    fn one_try_is_kept_for_the_model_below_and_a_server_that_failed_is_not_asked_again() {
        let mut descent = Descent::begin(false, 1);
        assert!(descent.may_try_again(Missed::Failed, 1, true));
        assert!(!descent.may_try_again(Missed::Failed, 1, false));
        assert!(!descent.may_try_again(Missed::Failed, 2, true));
        descent.goes_down(0);
        assert!(descent.may_try_again(Missed::Failed, 2, false));
        assert!(!descent.may_try_again(Missed::Failed, 3, false));
    }

    #[test]
    fn a_pinned_model_without_room_has_the_tries_it_would_have_without_a_ladder() {
        let descent = Descent::begin(true, 1);
        assert!(descent.may_try_again(Missed::OutOfCapacity, 2, false));
        assert!(!descent.may_try_again(Missed::OutOfCapacity, 3, false));
        assert!(!descent.may_try_again(Missed::Failed, 1, false));
    }

    /// What one model of a random ladder does with a request.
    #[derive(Clone, Copy, Debug)]
    enum Does {
        Misses(Missed),
        /// Each try fails; so many servers are there.
        Fails(u32),
        Serves,
    }

    fn does() -> impl Strategy<Value = Does> {
        prop_oneof![
            Just(Does::Misses(Missed::OutOfCapacity)),
            Just(Does::Misses(Missed::Unhealthy)),
            (1_u32..5).prop_map(Does::Fails),
            Just(Does::Serves),
        ]
    }

    fn model() -> impl Strategy<Value = (Does, Rung)> {
        (does(), any::<bool>(), any::<bool>()).prop_map(|(does, is_allowed, is_external)| {
            let rung = Rung {
                is_allowed,
                is_external,
            };
            (does, rung)
        })
    }

    /// Walks a ladder as the shell does: the models asked in turn, by position, the tries made,
    /// and whether the last one served.
    fn walk(models: &[(Does, Rung)], pin: bool, guard_lets: bool) -> (Vec<usize>, u32, bool) {
        let open: Vec<usize> = (1..models.len())
            .filter(|&at| models[at].1.is_open(guard_lets))
            .collect();
        let mut descent = Descent::begin(pin, open.len());
        let (mut asked, mut tries) = (vec![0], 0);
        loop {
            let at = asked[asked.len() - 1];
            let missed = match models[at].0 {
                Does::Misses(missed) => missed,
                Does::Fails(servers) => {
                    let mut here = 1;
                    tries += 1;
                    while descent.may_try_again(Missed::Failed, tries, here < servers) {
                        here += 1;
                        tries += 1;
                    }
                    Missed::Failed
                }
                Does::Serves => return (asked, tries + 1, true),
            };
            if !descent.may_leave(missed, tries) {
                return (asked, tries, false);
            }
            asked.push(open[asked.len() - 1]);
            descent.goes_down(open.len() + 1 - asked.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn a_ladder_is_gone_down_in_order_once_within_the_tries_of_one_request(
            models in prop::collection::vec(model(), 1..8),
            pin in any::<bool>(),
            guard_lets in any::<bool>(),
        ) {
            let (asked, tries, served) = walk(&models, pin, guard_lets);
            prop_assert!(tries <= TRIES_MAX);
            prop_assert!(asked.is_sorted_by(|a, b| a < b), "in order, none twice: {asked:?}");
            for &at in &asked[1..] {
                prop_assert!(models[at].1.is_allowed);
                prop_assert!(guard_lets || !models[at].1.is_external);
            }
            let open = |at: &usize| models[*at].1.is_open(guard_lets);
            let last = asked[asked.len() - 1];
            let passed_over = (1..last).filter(open).filter(|at| !asked.contains(at));
            prop_assert_eq!(passed_over.count(), 0, "no open rung is jumped");
            if pin && matches!(models[0].0, Does::Misses(_)) {
                prop_assert_eq!(&asked[..], [0]);
            } else if !served {
                let ended = (last + 1..models.len()).all(|at| !open(&at));
                prop_assert!(ended || tries == TRIES_MAX, "given up with a rung left");
            }
        }

        #[test]
        fn a_first_model_that_fails_once_a_server_leaves_a_try_for_the_next_one(
            servers in 1_u32..5,
        ) {
            let open = Rung { is_allowed: true, is_external: false };
            let models = [(Does::Fails(servers), open), (Does::Serves, open)];
            let (asked, _, served) = walk(&models, false, true);
            prop_assert_eq!(asked, [0, 1]);
            prop_assert!(served);
        }
    }
}
