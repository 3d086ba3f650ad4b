//! SDK for plugins in Rust: types, traits, export macros and small helpers.
//!
//! Only the guest's side, without any policy. A plugin is a type that implements [`Plugin`] and
//! one of [`Task`], [`Billing`] or [`Routing`] (or [`TaskStream`], [`Estimator`] on top), and a macro:
//!
//! ```no_run
//! use infergate_sdk::{Billing, BillingError, Charge, Plugin, Problem, Settings, Tariff, Usage};
//!
//! struct Flat { neurons: f64 }
//!
//! impl Plugin for Flat {
//!     fn configure(settings: &mut Settings) -> Flat {
//!         Flat { neurons: settings.number("neurons", 1.0) }
//!     }
//! }
//!
//! impl Billing for Flat {
//!     type Terms = ();
//!
//!     fn terms(&self, _: &Tariff) -> Result<(), BillingError> {
//!         Ok(())
//!     }
//!
//!     fn price(&self, _: &(), _: &Usage<'_>, charge: &mut Charge) -> Result<(), BillingError> {
//!         charge.add_base(self.neurons);
//!         Ok(())
//!     }
//! }
//!
//! infergate_sdk::export_billing!(Flat);
//! ```
//!
//! A plugin that calls nothing of [`host`] imports nothing. Hooks get `&self`: state between the hooks of
//! one request is returned as `state`, at most 4 KiB, and passed to the next hook.

#[doc(hidden)]
pub mod bindings;
mod export;
pub mod host;
pub mod json;
pub mod price;
mod pricing;
pub mod rank;
mod settings;
mod slot;
pub mod standard;

pub use bindings::lifecycle::exports::infergate::plugin::lifecycle::Problem;
pub use bindings::pricing::exports::infergate::plugin::pricing::{
    BillingError, Coefficient, Metric, Outcome, Source, Tariff, Trust,
};
pub use bindings::routing::exports::infergate::plugin::routing::{
    Candidate, Choice, Health, Hints,
};
pub use bindings::task::exports::infergate::plugin::task::{
    Attribute, Description, Edit, Field, Finished, Hooks, Prepared, Rejection, Request, Response,
    TaskError, View,
};
pub use bindings::task_stream::exports::infergate::plugin::task_stream::{Event, Out, Step};
pub use pricing::{Charge, Line, Usage};

/// Place where the bindings' macro looks for the exports of `pricing`.
#[doc(hidden)]
pub mod by_hand {
    pub mod exports {
        pub mod infergate {
            pub mod plugin {
                pub mod pricing {
                    pub use crate::export_pricing_functions as __export_infergate_plugin_pricing_1_1_0_cabi;
                }
            }
        }
    }
}

#[doc(hidden)]
pub use pricing::{FlatUsage, Formula, unexported};
pub use serde_json;
pub use settings::Settings;
#[doc(hidden)]
pub use slot::Slot;

/// A quantity by its name, such as `("output_tokens", 12.0)`.
pub type Quantity = (String, f64);

/// A configured plugin, made once per instance and not changed after.
pub trait Plugin: Sized + Send + Sync {
    /// Reads the `settings` of the configuration file. All problems are reported together, unknown keys
    /// too, and the plugin is then not loaded.
    fn configure(settings: &mut Settings) -> Self;
}

/// Input checks, payload and result of one model task.
pub trait Task: Plugin {
    /// Describes the task: schemas and implemented hooks. Called while loading.
    fn describe(&self) -> Description;

    /// From the client's body to the server's.
    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let _ = request;
        Ok(Prepared::default())
    }

    /// From the server's body to the result.
    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        let _ = response;
        Ok(Finished::default())
    }
}

/// A task that also shapes the events of a stream.
pub trait TaskStream: Task {
    /// Returns an [`Out`] for each event, in order.
    fn push(&self, state: Vec<u8>, events: Vec<Event>) -> Result<Step, String>;

    /// The stream has ended; `cut` when before its time.
    fn close(&self, state: Vec<u8>, cut: bool) -> Result<Step, String> {
        let _ = (state, cut);
        Ok(Step::default())
    }
}

/// From metrics to a charge.
pub trait Billing: Plugin {
    /// Terms of a tariff, as the formula keeps them for many requests: texts read, indices found.
    type Terms: Send;

    /// The terms of a tariff. Called once for a tariff and the metrics that are priced under it.
    fn terms(&self, tariff: &Tariff) -> Result<Self::Terms, BillingError>;

    /// Writes the price of a request into `charge`, which is empty. `total` must be `base` plus all lines, finite
    /// and not negative.
    fn price(
        &self,
        terms: &Self::Terms,
        usage: &Usage<'_>,
        charge: &mut Charge,
    ) -> Result<(), BillingError>;
}

/// A formula that can also estimate metrics from the bodies, for models that are not trusted.
pub trait Estimator: Billing {
    /// Estimates from `input` and `output` as the client has sent and received them.
    fn estimate(
        &self,
        input: Vec<u8>,
        output: Vec<u8>,
        state: Vec<u8>,
    ) -> Result<Vec<Quantity>, String>;
}

/// An order of the candidates of a request.
pub trait Routing: Plugin {
    /// Best first; equal steps are one tier.
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String>;
}

impl Default for Prepared {
    /// The body stays as it is.
    fn default() -> Prepared {
        Prepared {
            edit: Edit::Keep,
            backend_path: None,
            attributes: Vec::new(),
            metrics: Vec::new(),
            state: Vec::new(),
        }
    }
}

impl Default for Finished {
    /// The body stays as it is.
    fn default() -> Finished {
        Finished {
            edit: Edit::Keep,
            metrics: Vec::new(),
        }
    }
}

impl Default for Step {
    /// No events and no metrics, the usual result of `close`.
    fn default() -> Step {
        Step {
            events: Vec::new(),
            metrics: Vec::new(),
            state: Vec::new(),
        }
    }
}

impl TaskError {
    /// A client error: status 400, with the place of the fault in the body (RFC 6901).
    pub fn rejected(code: &str, message: impl Into<String>, pointer: Option<&str>) -> TaskError {
        TaskError::Rejected(Rejection {
            status: 400,
            code: code.into(),
            message: message.into(),
            pointer: pointer.map(Into::into),
        })
    }
}
