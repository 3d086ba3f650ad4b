//! The operators' listener under TLS: certificates, their renewal, and commands that ask it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::{Authority, Certificate, eventually, free_address, over_tls};

/// A gateway without models whose operators' listener has these keys of `tls`.
struct Secured {
    dir: tempfile::TempDir,
    admin: SocketAddr,
    child: Child,
}

impl Drop for Secured {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_config(dir: &Path, admin: SocketAddr, tls: &str) {
    let state = dir.join("state");
    let text = format!(
        "listen:\n  clients: [{{ address: \"127.0.0.1:0\" }}]\n  admin: {{ address: \"{admin}\", tls: {{ {tls} }} }}\n\
         state_dir: \"{}\"\nanonymous: allow\nmodels: []\n",
        state.display()
    );
    std::fs::write(dir.join("infergate.yaml"), text).unwrap();
}

impl Secured {
    fn start(dir: tempfile::TempDir, tls: &str) -> Secured {
        let admin = free_address();
        write_config(dir.path(), admin, tls);
        let child = Command::new(env!("CARGO_BIN_EXE_infergate"))
            .args(["serve", "--config"])
            .arg(dir.path().join("infergate.yaml"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Secured { dir, admin, child }
    }

    async fn ask(
        &self,
        request: &str,
        authority: &Authority,
        shown: Option<&Certificate>,
    ) -> std::io::Result<String> {
        let request = format!(
            "{request} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.admin
        );
        over_tls(self.admin, "127.0.0.1", authority, shown, &request).await
    }

    async fn is_ready(&self, authority: &Authority, shown: Option<&Certificate>) {
        eventually("the listener answers under TLS", async || {
            let answer = self.ask("GET /readyz", authority, shown).await.ok()?;
            answer.starts_with("HTTP/1.1 200").then_some(())
        })
        .await;
    }

    /// Runs `infergate explain` with these options.
    fn explain(&self, options: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
        command.arg("explain").args(options).output().unwrap()
    }

    fn https(&self) -> String {
        format!("https://{}", self.admin)
    }
}

#[tokio::test]
async fn operators_and_commands_are_served_under_tls_alone() {
    let [authority, other] = [Authority::new(), Authority::new()];
    let dir = tempfile::tempdir().unwrap();
    let keys = authority.certify("127.0.0.1").write(dir.path(), "own");
    let ca = authority.write(dir.path());
    let node = Secured::start(dir, &keys);
    node.is_ready(&authority, None).await;
    assert!(node.ask("GET /readyz", &other, None).await.is_err());

    let file = node.dir.path().join("infergate.yaml").display().to_string();
    let https = node.https();
    for options in [
        &["--admin", &https, "--admin-ca", &ca][..],
        &["--config", &file, "--admin-ca", &ca],
    ] {
        let shown = node.explain(options);
        assert!(shown.status.success(), "{options:?}: {shown:?}");
    }
    let plain = node.admin.to_string();
    for (options, advice) in [
        (&["--admin", &plain][..], "--admin https://"),
        (&["--admin", &https], "--admin-ca"),
    ] {
        let refused = node.explain(options);
        assert_eq!(refused.status.code(), Some(2), "{options:?}");
        let printed = String::from_utf8(refused.stderr).unwrap();
        assert!(printed.contains(advice), "{printed}");
    }

    // A renewed certificate is shown without a restart.
    other.certify("127.0.0.1").write(node.dir.path(), "own");
    node.is_ready(&other, None).await;
    assert!(node.ask("GET /readyz", &authority, None).await.is_err());
}

#[tokio::test]
async fn with_client_ca_an_operator_shows_a_certificate() {
    let [authority, other] = [Authority::new(), Authority::new()];
    let dir = tempfile::tempdir().unwrap();
    let keys = authority.certify("127.0.0.1").write(dir.path(), "own");
    let ca = authority.write(dir.path());
    let node = Secured::start(dir, &format!("{keys}, client_ca: \"{ca}\""));
    let operator = authority.certify("operator");
    node.is_ready(&authority, Some(&operator)).await;
    assert!(node.ask("GET /readyz", &authority, None).await.is_err());
    let stranger = other.certify("operator");
    let refused = node.ask("GET /readyz", &authority, Some(&stranger)).await;
    assert!(refused.is_err());

    operator.write(node.dir.path(), "operator");
    let at = |name: &str| node.dir.path().join(name).display().to_string();
    let (certificate, key, https) = (at("operator.crt"), at("operator.key"), node.https());
    let named = ["--admin", &https, "--admin-ca", &ca];
    let own = ["--admin-certificate", &certificate, "--admin-key", &key];
    let shown = node.explain(&[&named[..], &own].concat());
    assert!(shown.status.success(), "{shown:?}");
    assert_eq!(node.explain(&named).status.code(), Some(2));

    // TLS goes with a reload, for new connections.
    write_config(node.dir.path(), node.admin, &keys);
    eventually("no certificate is asked for", async || {
        let answer = node.ask("GET /readyz", &authority, None).await.ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    })
    .await;
}
