//! Cost of loading a plugin: from bytes, and from the authenticated cache.
//!
//! On the wall, since the compiler has a thread of its own.

use std::time::Instant;

use infergate::parts::{Host, HostSettings, PluginSnapshot};

use crate::kit::{shipped, spec, user};

/// Prints the table.
pub fn run() {
    println!(
        "\n{:<32} {:>8} {:>14} {:>12}",
        "loading, ms", "KiB", "from bytes", "from cache"
    );
    for (file, world, role) in [
        ("neurons", "billing-formula", "billing"),
        ("latency", "routing-policy", "routing"),
        ("text-generation", "task-schema-streaming", "task"),
    ] {
        let path = shipped(file);
        let folder = tempfile::tempdir().unwrap();
        // Beside a copy there are no fixtures: they are the author's time, not the host's.
        let copy = folder.path().join("p.wasm");
        std::fs::copy(&path, &copy).unwrap();
        let cache_dir = folder.path().join("compiled");
        let [bytes, cached] = [(); 2].map(|()| {
            let settings = HostSettings {
                cache_dir: Some(cache_dir.clone()),
                slots: 16,
                ..HostSettings::default()
            };
            let host = Host::start(settings).unwrap();
            let model = user(role, "text-generation");
            // Starts the engine, so that it is not measured.
            let one = spec(&copy, world, "auto");
            let mut other = one.clone();
            other.limits.memory_mib = Some(17);
            if cache_dir.read_dir().unwrap().count() > 1 {
                host.load(
                    &PluginSnapshot::default(),
                    &[other],
                    std::slice::from_ref(&model),
                )
                .unwrap();
            }
            let began = Instant::now();
            host.load(&PluginSnapshot::default(), &[one], &[model])
                .unwrap();
            began.elapsed().as_secs_f64() * 1000.0
        });
        let kib = std::fs::metadata(&copy).unwrap().len() >> 10;
        println!("{file:<32} {kib:>8} {bytes:>14.1} {cached:>12.2}");
    }
}
