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

/// Makes a [`Billing`](crate::Billing) the plugin of this crate: world `billing-formula`, interface `pricing`.
#[macro_export]
macro_rules! export_billing {
    ($plugin:ty $(, $log:ident)?) => {
        $crate::export_lifecycle!($plugin $(, $log)?);

        static FORMULA: $crate::Formula<$plugin> = $crate::Formula::new();

        impl $crate::bindings::pricing::exports::infergate::plugin::pricing::Guest for Exports {
            fn set_tariff(
                number: u32,
                tariff: $crate::Tariff,
            ) -> Result<(), $crate::BillingError> {
                let plugin = plugin().map_err($crate::BillingError::Broken)?;
                FORMULA.set_tariff(plugin, number, &tariff)
            }
            fn price(
                _: u32,
                _: $crate::bindings::pricing::exports::infergate::plugin::pricing::Usage,
            ) -> Result<
                $crate::bindings::pricing::exports::infergate::plugin::pricing::Charge,
                $crate::BillingError,
            > {
                $crate::unexported()
            }
        }
        $crate::bindings::pricing::export_pricing_interface!(
            Exports with_types_in $crate::by_hand
        );
    };
}

/// Exports the functions of `pricing` under their names: `set-tariff` as bindings read it, `price` without them. The
/// macro of the bindings, which describes the interface to the encoder of the component, finds it in their place
/// ([`by_hand`](crate::by_hand)). Signatures are the canonical ABI's, and the encoder holds them against the interface.
#[doc(hidden)]
#[macro_export]
macro_rules! export_pricing_functions {
    ($exports:ident with_types_in $($path:tt)*) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::pricing::exports::infergate::plugin::pricing as bindings;

            #[unsafe(export_name = "infergate:plugin/pricing@1.1.0#set-tariff")]
            unsafe extern "C" fn set_tariff(
                number: i32,
                model: *mut u8,
                model_len: usize,
                trust: i32,
                cost_per_infer: f64,
                coefficients: *mut u8,
                coefficients_len: usize,
                criteria: *mut u8,
                criteria_len: usize,
                metrics: *mut u8,
                metrics_len: usize,
            ) -> *mut u8 {
                // SAFETY: the host calls it by the canonical ABI, with memory that it got from `cabi_realloc`.
                unsafe {
                    bindings::_export_set_tariff_cabi::<$exports>(
                        number,
                        model,
                        model_len,
                        trust,
                        cost_per_infer,
                        coefficients,
                        coefficients_len,
                        criteria,
                        criteria_len,
                        metrics,
                        metrics_len,
                    )
                }
            }

            #[unsafe(export_name = "cabi_post_infergate:plugin/pricing@1.1.0#set-tariff")]
            unsafe extern "C" fn set_tariff_post_return(answer: *mut u8) {
                // SAFETY: the host calls it once with the address that `set-tariff` returned.
                unsafe { bindings::__post_return_set_tariff::<$exports>(answer) }
            }

            #[unsafe(export_name = "infergate:plugin/pricing@1.1.0#price")]
            unsafe extern "C" fn price(
                number: u32,
                outcome: u32,
                streamed: u32,
                queue_ms: u64,
                infer_ms: u64,
                case: u32,
                first: u64,
                second: u64,
                third: f64,
                fourth: f64,
                fifth: f64,
                sixth: f64,
                seventh: f64,
                eighth: f64,
            ) -> *const u64 {
                let usage = $crate::FlatUsage {
                    outcome,
                    streamed,
                    queue_ms,
                    infer_ms,
                };
                let plugin = plugin();
                if case == 0 {
                    let (first, second) = (f64::from_bits(first), f64::from_bits(second));
                    let few = [first, second, third, fourth, fifth, sixth, seventh, eighth];
                    return FORMULA.price(plugin, number, usage, &few);
                }
                // SAFETY: the second case is a list, whose memory the host got from `cabi_realloc`.
                let many = unsafe {
                    Vec::from_raw_parts(
                        first as usize as *mut f64,
                        second as usize,
                        second as usize,
                    )
                };
                FORMULA.price(plugin, number, usage, &many)
            }
        };
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
