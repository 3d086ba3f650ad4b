//! Bindings generated from the interfaces, one module for each, so that worlds with more than one of them
//! share types. Not for plugins: these use the crate's root and the `export_*!` macros.
//!
//! The worlds named here exist only inside the guest: the encoder unites those that are exported.

#![allow(missing_docs, clippy::unwrap_used)]

/// An interface that a guest exports.
macro_rules! interface {
    ($module:ident, $world:literal, $wit:literal, $macro:literal, $root:literal) => {
        pub mod $module {
            wit_bindgen::generate!({
                inline: $wit,
                path: ["../../wit/host", "../../wit/plugin"],
                world: $world,
                pub_export_macro: true,
                export_macro_name: $macro,
                default_bindings_module: $root,
                additional_derives: [PartialEq],
            });
        }
    };
}

interface!(
    lifecycle,
    "lifecycle-only",
    "package infergate:sdk; world lifecycle-only { export infergate:plugin/lifecycle@1.1.0; }",
    "export_lifecycle_interface",
    "infergate_sdk::bindings::lifecycle"
);
interface!(
    task,
    "task-only",
    "package infergate:sdk; world task-only { export infergate:plugin/task@1.1.0; }",
    "export_task_interface",
    "infergate_sdk::bindings::task"
);
interface!(
    task_stream,
    "task-stream-only",
    "package infergate:sdk; world task-stream-only { export infergate:plugin/task-stream@1.1.0; }",
    "export_task_stream_interface",
    "infergate_sdk::bindings::task_stream"
);
interface!(
    pricing,
    "pricing-only",
    "package infergate:sdk; world pricing-only { export infergate:plugin/pricing@1.1.0; }",
    "export_pricing_interface",
    "infergate_sdk::bindings::pricing"
);
interface!(
    estimator,
    "estimator-only",
    "package infergate:sdk; world estimator-only { export infergate:plugin/estimator@1.1.0; }",
    "export_estimator_interface",
    "infergate_sdk::bindings::estimator"
);
interface!(
    routing,
    "routing-only",
    "package infergate:sdk; world routing-only { export infergate:plugin/routing@1.1.0; }",
    "export_routing_interface",
    "infergate_sdk::bindings::routing"
);

/// Interfaces that a guest may import; unused ones are not imported.
pub mod host {
    wit_bindgen::generate!({
        path: ["../../wit/host", "../../wit/plugin"],
        world: "infergate:plugin/grants",
        generate_all,
    });
}
