//! The WIT packages as text, for authors' tools: the very files the gateway's bindings are made from.

/// `infergate:host`, what a plugin may import: file name and text.
pub const HOST: &[(&str, &str)] = &[("host.wit", include_str!("../../wit/host/host.wit"))];

/// `infergate:plugin`, what a plugin exports: file name and text.
pub const PLUGIN: &[(&str, &str)] = &[
    ("billing.wit", include_str!("../../wit/plugin/billing.wit")),
    (
        "estimator.wit",
        include_str!("../../wit/plugin/estimator.wit"),
    ),
    (
        "lifecycle.wit",
        include_str!("../../wit/plugin/lifecycle.wit"),
    ),
    ("pricing.wit", include_str!("../../wit/plugin/pricing.wit")),
    ("routing.wit", include_str!("../../wit/plugin/routing.wit")),
    (
        "task-stream.wit",
        include_str!("../../wit/plugin/task-stream.wit"),
    ),
    ("task.wit", include_str!("../../wit/plugin/task.wit")),
    ("worlds.wit", include_str!("../../wit/plugin/worlds.wit")),
];

/// Writes both packages as authors' tools want them: the plugins' in `folder`, the host's below its
/// `deps`.
///
/// # Errors
/// A file or folder that cannot be written.
pub fn write(folder: &std::path::Path) -> std::io::Result<()> {
    let deps = folder.join("deps/host");
    std::fs::create_dir_all(&deps)?;
    for (into, files) in [(folder, PLUGIN), (&deps, HOST)] {
        for (name, text) in files {
            std::fs::write(into.join(name), text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use wit_parser::Resolve;

    #[test]
    fn what_is_written_is_every_file_and_parses_with_its_worlds() {
        let folder = tempfile::tempdir().unwrap();
        super::write(folder.path()).unwrap();
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_dir(folder.path()).unwrap();
        for world in [
            "task-schema",
            "task-schema-streaming",
            "billing-formula",
            "billing-estimator",
            "pricing-formula",
            "pricing-estimator",
            "routing-policy",
        ] {
            resolve.select_world(&[package], Some(world)).unwrap();
        }
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/wit/plugin"));
        assert_eq!(files.unwrap().count(), super::PLUGIN.len());
    }
}
