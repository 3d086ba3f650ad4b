//! Model fallback: decides which model of the `fallbacks` list is tried next.
//!
//! Sends nothing and knows no model by name. A request moves down the list only: a model that was
//! left is not tried again, and fallbacks of the fallback models do not count. All models together
//! share the attempts and the deadline of the request. No fallback happens after the first byte of
//! a response, nor once a server may have begun to work. Known in the source system as the
//! candidates of a task; there, too, the guard keeps to the places after the first.

use super::ATTEMPTS_MAX;

/// Fallback model, as far as the decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackCandidate {
    /// The account may use it.
    pub is_allowed: bool,
    /// The model is served by an external provider.
    pub is_external: bool,
}

impl FallbackCandidate {
    /// Returns whether a request may fall back to this model. The primary model is never checked: a
    /// client or operator that names an external model means it.
    pub fn is_open(self, allow_cloud_fallback: bool) -> bool {
        self.is_allowed && (allow_cloud_fallback || !self.is_external)
    }
}

/// Reason why a request falls back to another model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// Out of capacity: permits and queue are full, or the wait would be too long.
    OutOfCapacity,
    /// None of its servers is fit.
    Unhealthy,
    /// Model that has to be loaded first while a later one is ready.
    Cold,
    /// Its servers failed before they began to work.
    Failed,
}

impl FallbackReason {
    /// Every reason, in the order of its metric series.
    pub const ALL: [FallbackReason; 4] = [
        FallbackReason::OutOfCapacity,
        FallbackReason::Unhealthy,
        FallbackReason::Cold,
        FallbackReason::Failed,
    ];

    /// Its name on a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            FallbackReason::OutOfCapacity => "out-of-capacity",
            FallbackReason::Unhealthy => "unhealthy",
            FallbackReason::Cold => "cold",
            FallbackReason::Failed => "failed",
        }
    }
}

/// Returns the position of the candidate that a request goes to first: the first one, unless it is cold, another one
/// is warm, and it is not pinned. A model is warm when no process has to be loaded for it.
pub fn first_candidate(pin_primary: bool, is_warm: impl IntoIterator<Item = bool>) -> usize {
    let mut is_warm = is_warm.into_iter();
    match pin_primary {
        true => 0,
        false => is_warm.position(|warm| warm).unwrap_or(0),
    }
}

/// Fallback state of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackState {
    is_pinned: bool,
    is_at_primary: bool,
    open_below: usize,
}

impl FallbackState {
    /// Starts at the primary model, with `below` open fallbacks.
    pub fn new(pin_primary: bool, below: usize) -> FallbackState {
        FallbackState {
            is_pinned: pin_primary,
            is_at_primary: true,
            open_below: below,
        }
    }

    /// Returns whether the request may fall back after the present model failed with this reason.
    pub fn may_fall_back(&self, reason: FallbackReason, tries: u32) -> bool {
        self.open_candidates(reason) > 0 && tries < ATTEMPTS_MAX
    }

    /// Open fallbacks below the present model that this reason allows.
    fn open_candidates(&self, reason: FallbackReason) -> usize {
        let waits = self.is_pinned && self.is_at_primary && reason != FallbackReason::Failed;
        if waits { 0 } else { self.open_below }
    }

    /// Records the fallback to a model with `below` open ones after it.
    pub fn record_fallback(&mut self, below: usize) {
        self.is_at_primary = false;
        self.open_below = below;
    }

    /// Records that the request goes back to the first model, to wait for its load: no other is left.
    pub fn record_return(&mut self) {
        self.is_at_primary = true;
        self.open_below = 0;
    }

    /// Returns whether the present model may make another attempt after `tries` of the whole
    /// request. While a fallback is left, one attempt is kept for it, and no server that failed
    /// this request is tried again. `has_fresh` says that there are others.
    pub fn may_retry_model(&self, reason: FallbackReason, tries: u32, has_fresh: bool) -> bool {
        match self.open_candidates(reason) {
            0 => tries < ATTEMPTS_MAX,
            _ => has_fresh && tries + 1 < ATTEMPTS_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_guard_takes_external_models_off_and_the_account_those_it_may_not_use() {
        let rung = |is_allowed, is_external| FallbackCandidate {
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
    fn a_warm_candidate_goes_before_a_cold_first_one_that_is_not_pinned() {
        assert_eq!(first_candidate(false, [false, true, true]), 1);
        assert_eq!(first_candidate(false, [true, false, true]), 0);
        assert_eq!(first_candidate(false, [false, false]), 0);
        assert_eq!(first_candidate(true, [false, true]), 0);
    }

    #[test]
    fn a_pinned_model_is_left_when_it_fails_and_not_for_want_of_room() {
        let mut descent = FallbackState::new(true, 2);
        assert!(!descent.may_fall_back(FallbackReason::OutOfCapacity, 0));
        assert!(!descent.may_fall_back(FallbackReason::Unhealthy, 0));
        assert!(!descent.may_fall_back(FallbackReason::Cold, 0));
        assert!(descent.may_fall_back(FallbackReason::Failed, 1));
        descent.record_fallback(1);
        assert!(descent.may_fall_back(FallbackReason::OutOfCapacity, 1));
    }

    #[test]
    fn one_try_is_kept_for_the_model_below_and_a_server_that_failed_is_not_asked_again() {
        let mut descent = FallbackState::new(false, 1);
        assert!(descent.may_retry_model(FallbackReason::Failed, 1, true));
        assert!(!descent.may_retry_model(FallbackReason::Failed, 1, false));
        assert!(!descent.may_retry_model(FallbackReason::Failed, 2, true));
        descent.record_fallback(0);
        assert!(descent.may_retry_model(FallbackReason::Failed, 2, false));
        assert!(!descent.may_retry_model(FallbackReason::Failed, 3, false));
    }

    #[test]
    fn a_pinned_model_without_room_has_the_tries_it_would_have_without_a_ladder() {
        let descent = FallbackState::new(true, 1);
        assert!(descent.may_retry_model(FallbackReason::OutOfCapacity, 2, false));
        assert!(!descent.may_retry_model(FallbackReason::OutOfCapacity, 3, false));
        assert!(!descent.may_retry_model(FallbackReason::Failed, 1, false));
    }

    #[test]
    fn a_request_that_is_back_at_its_model_goes_nowhere_else() {
        let mut descent = FallbackState::new(false, 1);
        assert!(descent.may_fall_back(FallbackReason::Cold, 0));
        descent.record_fallback(0);
        descent.record_return();
        for reason in FallbackReason::ALL {
            assert!(!descent.may_fall_back(reason, 0));
        }
        assert!(descent.may_retry_model(FallbackReason::Failed, 1, false));
    }

    /// Behaviour of one model of a random fallback list.
    #[derive(Clone, Copy, Debug)]
    enum Does {
        Misses(FallbackReason),
        /// Each try fails; so many servers are there.
        Fails(u32),
        Serves,
    }

    fn does() -> impl Strategy<Value = Does> {
        prop_oneof![
            Just(Does::Misses(FallbackReason::OutOfCapacity)),
            Just(Does::Misses(FallbackReason::Unhealthy)),
            Just(Does::Misses(FallbackReason::Cold)),
            (1_u32..5).prop_map(Does::Fails),
            Just(Does::Serves),
        ]
    }

    fn model() -> impl Strategy<Value = (Does, FallbackCandidate)> {
        (does(), any::<bool>(), any::<bool>()).prop_map(|(does, is_allowed, is_external)| {
            let rung = FallbackCandidate {
                is_allowed,
                is_external,
            };
            (does, rung)
        })
    }

    /// Walks a fallback list as the shell does: the models asked in turn, by position, the tries made,
    /// and whether the last one served.
    fn walk(
        models: &[(Does, FallbackCandidate)],
        pin: bool,
        guard_lets: bool,
    ) -> (Vec<usize>, u32, bool) {
        let open: Vec<usize> = (1..models.len())
            .filter(|&at| models[at].1.is_open(guard_lets))
            .collect();
        let mut descent = FallbackState::new(pin, open.len());
        let (mut asked, mut tries) = (vec![0], 0);
        loop {
            let at = asked[asked.len() - 1];
            let reason = match models[at].0 {
                Does::Misses(reason) => reason,
                Does::Fails(servers) => {
                    let mut here = 1;
                    tries += 1;
                    while descent.may_retry_model(FallbackReason::Failed, tries, here < servers) {
                        here += 1;
                        tries += 1;
                    }
                    FallbackReason::Failed
                }
                Does::Serves => return (asked, tries + 1, true),
            };
            if !descent.may_fall_back(reason, tries) {
                return (asked, tries, false);
            }
            asked.push(open[asked.len() - 1]);
            descent.record_fallback(open.len() + 1 - asked.len());
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
            prop_assert!(tries <= ATTEMPTS_MAX);
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
                prop_assert!(ended || tries == ATTEMPTS_MAX, "given up with a rung left");
            }
        }

        #[test]
        fn a_first_model_that_fails_once_a_server_leaves_a_try_for_the_next_one(
            servers in 1_u32..5,
        ) {
            let open = FallbackCandidate { is_allowed: true, is_external: false };
            let models = [(Does::Fails(servers), open), (Does::Serves, open)];
            let (asked, _, served) = walk(&models, false, true);
            prop_assert_eq!(asked, [0, 1]);
            prop_assert!(served);
        }
    }
}
