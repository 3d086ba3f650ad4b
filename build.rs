//! Puts the commit into `infergate --version`; a build outside git says so.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| text.trim().to_owned())
    };
    let hash = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "no-git".into());
    println!("cargo:rustc-env=INFERGATE_GIT_HASH={hash}");
    // The log of HEAD moves with every commit; before the first one only the folder of refs does.
    for name in ["logs/HEAD", "refs/heads"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && std::path::Path::new(&path).exists()
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
}
