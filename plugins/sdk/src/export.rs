//! Macros that make a type the plugin of a component. Expanded in the plugin's crate, because exported
//! symbols and the configured instance must stand there.
//!
//! `export_billing!(Plugin, log)` sends panics to `infergate:host/log`, so the plugin needs
//! `grants: [log]`. `log` is a word in the macro and no cargo feature. Cargo unites the features of all
//! plugins of a workspace, so that one that logs would make the others import the log too.

/// The part that every plugin has. Not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! export_lifecycle {
    ($plugin:ty $(, $log:ident)?) => {
        /// The type whose functions are exported.
        #[doc(hidden)]
        pub struct Exports;

        static PLUGIN: $crate::Slot<$plugin> = $crate::Slot::new();

        /// The plugin of this instance; panics are logged from here on when `log` is given.
        fn plugin() -> Result<&'static $plugin, String> {
            $($crate::report_panics_to!($log);)?
            PLUGIN.get()
        }

        impl $crate::bindings::lifecycle::exports::infergate::plugin::lifecycle::Guest for Exports {
            fn configure(settings: String) -> Result<(), Vec<$crate::Problem>> {
                $($crate::report_panics_to!($log);)?
                PLUGIN.configure(&settings)
            }
        }
        $crate::bindings::lifecycle::export_lifecycle_interface!(
            Exports with_types_in $crate::bindings::lifecycle
        );
    };
}

/// The only word after the plugin's type is `log`.
#[doc(hidden)]
#[macro_export]
macro_rules! report_panics_to {
    (log) => {
        $crate::host::report_panics()
    };
}

/// Makes a [`Task`](crate::Task) the plugin of this crate: world `task-schema`.
#[macro_export]
macro_rules! export_task {
    ($plugin:ty $(, $log:ident)?) => {
        $crate::export_lifecycle!($plugin $(, $log)?);

        impl $crate::bindings::task::exports::infergate::plugin::task::Guest for Exports {
            fn describe() -> $crate::Description {
                let plugin = plugin().expect("a plugin that needs settings is configured first");
                <$plugin as $crate::Task>::describe(plugin)
            }
            fn prepare(request: $crate::Request) -> Result<$crate::Prepared, $crate::TaskError> {
                let plugin = plugin().map_err($crate::TaskError::Broken)?;
                <$plugin as $crate::Task>::prepare(plugin, request)
            }
            fn finish(response: $crate::Response) -> Result<$crate::Finished, $crate::TaskError> {
                let plugin = plugin().map_err($crate::TaskError::Broken)?;
                <$plugin as $crate::Task>::finish(plugin, response)
            }
        }
        $crate::bindings::task::export_task_interface!(
            Exports with_types_in $crate::bindings::task
        );
    };
}

/// Makes a [`TaskStream`](crate::TaskStream) the plugin of this crate: world `task-schema-streaming`.
#[macro_export]
macro_rules! export_task_stream {
    ($plugin:ty $(, $log:ident)?) => {
        $crate::export_task!($plugin $(, $log)?);

        impl $crate::bindings::task_stream::exports::infergate::plugin::task_stream::Guest
            for Exports
        {
            fn push(state: Vec<u8>, events: Vec<$crate::Event>) -> Result<$crate::Step, String> {
                <$plugin as $crate::TaskStream>::push(plugin()?, state, events)
            }
            fn close(state: Vec<u8>, cut: bool) -> Result<$crate::Step, String> {
                <$plugin as $crate::TaskStream>::close(plugin()?, state, cut)
            }
        }
        $crate::bindings::task_stream::export_task_stream_interface!(
            Exports with_types_in $crate::bindings::task_stream
        );
    };
}

/// Makes a [`Billing`](crate::Billing) the plugin of this crate: world `billing-formula`.
#[macro_export]
macro_rules! export_billing {
    ($plugin:ty $(, $log:ident)?) => {
        $crate::export_lifecycle!($plugin $(, $log)?);

        impl $crate::bindings::billing::exports::infergate::plugin::billing::Guest for Exports {
            fn price(
                tariff: $crate::Tariff,
                usage: $crate::Usage,
            ) -> Result<$crate::Charge, $crate::BillingError> {
                let plugin = plugin().map_err($crate::BillingError::Broken)?;
                <$plugin as $crate::Billing>::price(plugin, tariff, usage)
            }
        }
        $crate::bindings::billing::export_billing_interface!(
            Exports with_types_in $crate::bindings::billing
        );
    };
}

/// Makes an [`Estimator`](crate::Estimator) the plugin of this crate: world `billing-estimator`.
#[macro_export]
macro_rules! export_estimator {
    ($plugin:ty $(, $log:ident)?) => {
        $crate::export_billing!($plugin $(, $log)?);

        impl $crate::bindings::estimator::exports::infergate::plugin::estimator::Guest for Exports {
            fn estimate(
                input: Vec<u8>,
                output: Vec<u8>,
                state: Vec<u8>,
            ) -> Result<Vec<$crate::Quantity>, String> {
                <$plugin as $crate::Estimator>::estimate(plugin()?, input, output, state)
            }
        }
        $crate::bindings::estimator::export_estimator_interface!(
            Exports with_types_in $crate::bindings::estimator
        );
    };
}

/// Makes a [`Routing`](crate::Routing) the plugin of this crate: world `routing-policy`.
#[macro_export]
macro_rules! export_routing {
    ($plugin:ty $(, $log:ident)?) => {
        $crate::export_lifecycle!($plugin $(, $log)?);

        impl $crate::bindings::routing::exports::infergate::plugin::routing::Guest for Exports {
            fn rank(
                hints: $crate::Hints,
                candidates: Vec<$crate::Candidate>,
            ) -> Result<Vec<$crate::Choice>, String> {
                <$plugin as $crate::Routing>::rank(plugin()?, hints, candidates)
            }
        }
        $crate::bindings::routing::export_routing_interface!(
            Exports with_types_in $crate::bindings::routing
        );
    };
}
