//! Rust's side of the WIT packages: types, typed exports, and the traits of what guests may import.
//!
//! Each interface is a small world of its own. Making its indices tells whether a component has the
//! interface, at any version of its major. All of the code is generated.

#![allow(unsafe_code, missing_docs, dead_code, unused_imports, clippy::all)]

/// Exports of every plugin.
pub mod lifecycle {
    wasmtime::component::bindgen!({
        path: ["wit/host", "wit/plugin"],
        inline: "package infergate:face; world lifecycle-only { export infergate:plugin/lifecycle@1.1.0; }",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
    pub use exports::infergate::plugin::lifecycle::*;
}

/// A task.
pub mod task {
    wasmtime::component::bindgen!({
        path: ["wit/host", "wit/plugin"],
        inline: "package infergate:face; world task-only { export infergate:plugin/task@1.1.0; }",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
    pub use exports::infergate::plugin::task::*;
}

/// A task's stream hooks.
pub mod task_stream {
    wasmtime::component::bindgen!({
        path: ["wit/host", "wit/plugin"],
        inline: "package infergate:face; world stream-only { export infergate:plugin/task-stream@1.1.0; }",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
    pub use exports::infergate::plugin::task_stream::*;
}

/// A formula.
pub mod billing {
    wasmtime::component::bindgen!({
        path: ["wit/host", "wit/plugin"],
        inline: "package infergate:face; world billing-only { export infergate:plugin/billing@1.1.0; }",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
    pub use exports::infergate::plugin::billing::*;
}

/// A formula in numbers.
pub mod pricing {
    wasmtime::component::bindgen!({
        path: ["wit/host", "wit/plugin"],
        inline: "package infergate:face; world pricing-only { export infergate:plugin/pricing@1.1.0; }",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
    pub use exports::infergate::plugin::pricing::*;
}

/// A formula's own count.
pub mod estimator {
    wasmtime::component::bindgen!({
        path: ["wit/host", "wit/plugin"],
        inline: "package infergate:face; world estimator-only { export infergate:plugin/estimator@1.1.0; }",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// A policy.
pub mod routing {
    wasmtime::component::bindgen!({
        path: ["wit/host", "wit/plugin"],
        inline: "package infergate:face; world routing-only { export infergate:plugin/routing@1.1.0; }",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
    pub use exports::infergate::plugin::routing::*;
}

/// Imports that a guest may have.
pub mod host {
    wasmtime::component::bindgen!({
        path: ["wit/host", "wit/plugin"],
        world: "infergate:plugin/grants",
    });
    pub use crate::plugin::runtime::bindings::host::infergate::host::{counters, log, tables};
}
