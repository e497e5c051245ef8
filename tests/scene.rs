//! What a test has prepared for its server: a directory with a model, a backend and a provider.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::meddler;
use crate::serving::Serving;

/// What a test has prepared for its server: a directory with a model, a backend and a provider.
///
/// The provider runs the reference provider, unless [`break_provider`](Self::break_provider) says otherwise.
pub struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    /// A backend and a provider that are `program`'s.
    ///
    /// # Panics
    /// As everything here: where a test cannot go on.
    pub fn new(program: &str) -> Self {
        Self::with_backend(program, &[])
    }

    /// The same, the backend with further arguments.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn with_backend(program: &str, backend: &[&str]) -> Self {
        Self::with(program, |_| format!("fake-exporter \"$@\" {}", backend.join(" ")))
    }

    /// The same, with a [`meddler`] before the backend.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn with_meddler(program: &str, backend: &[&str]) -> Self {
        Self::with(program, |scene| format!("meddler '{}' \"$@\" {}", scene.path("").display(), backend.join(" ")))
    }

    fn with(program: &str, backend: impl FnOnce(&Self) -> String) -> Self {
        let only_ours = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().permissions(only_ours).tempdir().expect("a directory");
        let scene = Self { directory };
        std::fs::write(scene.model(), fake_exporter::model::EMBEDDED_GGUF).expect("a model");
        scene.script("backend", &format!("exec '{program}' {}", backend(&scene)));
        let broken = scene.path("broken");
        let broken = broken.display();
        let provider =
            format!("[ -f '{broken}' ] && exec /bin/sh '{broken}' \"$@\"\nexec '{program}' reference-provider \"$@\"");
        scene.script("provider", &provider);
        scene
    }

    /// Has a call to the meddler's backend go wrong; `fault` is what [`meddler::FAULT`] says.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn meddle(&self, fault: &str) {
        std::fs::write(self.path(meddler::FAULT), fault).expect("a file");
    }

    /// Takes a file of a test's away; whether it was there.
    pub fn take(&self, name: &str) -> bool {
        std::fs::remove_file(self.path(name)).is_ok()
    }

    /// A path in the scene's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The model.
    pub fn model(&self) -> PathBuf {
        self.path("kvshare-tiny.gguf")
    }

    /// The provider, for a command line.
    pub fn provider(&self) -> String {
        self.path("provider").display().to_string()
    }

    /// Has the provider be this shell script from now on.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn break_provider(&self, script: &str) {
        std::fs::write(self.path("broken"), script).expect("a script");
    }

    /// Has it be the reference provider again.
    pub fn mend_provider(&self) {
        let _ = std::fs::remove_file(self.path("broken"));
    }

    /// Writes a shell script that can be run; `provider` and `backend` are there already.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn script(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), format!("#!/bin/sh\n{text}\n")).expect("a script");
        std::fs::set_permissions(self.path(name), Permissions::from_mode(0o700)).expect("a program");
    }

    /// The command `program serve` with this scene's model, on a free port, where `arguments` name no others, and with a
    /// directory for temporary files of its own.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        std::fs::create_dir_all(self.path("tmp")).expect("a directory");
        let mut command = Command::new(program);
        command.arg("serve");
        for (flag, value) in [("--model", self.model()), ("--port", PathBuf::from("0"))] {
            if !arguments.contains(&flag) {
                command.arg(flag).arg(value);
            }
        }
        command.args(arguments);
        for name in ["ONEBIT_HYBRID_PREFILL", "ONEBIT_HYBRID_ELFS", "ONEBIT_KV_SHARE", "LLAMA_API_KEY"] {
            command.env_remove(name);
        }
        command.env("TMPDIR", self.path("tmp")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What the server has left in its directory for temporary files.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("tmp")).expect("a directory");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    /// Starts the server with this scene's backend and provider, and waits until it listens.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn serve(&self, program: &str, arguments: &[&str]) -> Serving {
        let (provider, backend) = (self.provider(), self.path("backend").display().to_string());
        let first = ["--prefill-provider", &provider, "--backend", &backend];
        Serving::start(self.command(program, &[&first, arguments].concat()))
    }
}
