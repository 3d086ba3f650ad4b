//! Identifiers of accounts and models: parsed once at the boundary, trusted inside.
//!
//! Not secrets: keys are elsewhere. Cheap to clone (a shared string), so that a permit, a waiter and
//! an event can each hold one.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! shared_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

// Two names with one shape: a macro keeps their conversions identical.
shared_name! {
    /// An account: the unit of fairness, limits and billing.
    AccountId
}
shared_name! {
    /// A model as clients name it, for example `@cf/meta/llama-3.1-8b-instruct`.
    ModelId
}

impl ModelId {
    /// Returns whether both share their text: equal for certain, without a look at it.
    pub(crate) fn is_copy_of(&self, other: &ModelId) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AccountId {
    /// The account of requests without a key, where the configuration allows them.
    pub const ANONYMOUS: &'static str = "anonymous";
}
