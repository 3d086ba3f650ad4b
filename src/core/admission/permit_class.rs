//! The two classes of requests for a model's permits, and the reason for which a class got one.
//!
//! Not the decision, which is in [`class_share`](super::class_share). Values only, read by operators.

/// Class of a request for a permit, and of the permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PermitClass {
    /// A client waits for the response: the model's queue with its discipline, bounds and refusals.
    #[default]
    Live,
    /// A durable job: served in arrival order, without account, and never refused for a long wait.
    Durable,
}

impl PermitClass {
    /// Both classes.
    pub const ALL: [PermitClass; 2] = [PermitClass::Live, PermitClass::Durable];

    /// Returns the class that it shares the permits with.
    pub fn other(self) -> PermitClass {
        match self {
            PermitClass::Live => PermitClass::Durable,
            PermitClass::Durable => PermitClass::Live,
        }
    }

    /// Returns the name that operators read.
    pub const fn name(self) -> &'static str {
        match self {
            PermitClass::Live => "live",
            PermitClass::Durable => "durable",
        }
    }
}

/// Reason for which a class got a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassChoice {
    /// No request of the other class waited.
    OnlyWaiting,
    /// Both waited, and this class had less virtual service.
    LessService,
    /// Both waited, and the other class had been granted as much as it may while this one waits.
    StarvationBound,
    /// Durable requests waited too, but held as many permits as they may.
    CapReached,
}

impl ClassChoice {
    /// Returns the name that operators read.
    pub const fn name(self) -> &'static str {
        match self {
            ClassChoice::OnlyWaiting => "only-waiting",
            ClassChoice::LessService => "less-service",
            ClassChoice::StarvationBound => "starvation-bound",
            ClassChoice::CapReached => "cap-reached",
        }
    }
}

/// A class that got a permit, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassTurn {
    /// Class of the request that was served.
    pub class: PermitClass,
    /// Reason for the class; the discipline chose the request within it.
    pub choice: ClassChoice,
}
