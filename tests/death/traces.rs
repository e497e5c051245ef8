//! What a server, its decoder, its providers and its requests could leave behind.

use std::path::{Path, PathBuf};

use crate::serving::{Scene, Serving, eventually};

/// What must be as before.
#[derive(Debug, PartialEq)]
pub struct Traces {
    processes: usize,
    proxy_descriptors: usize,
    decoder_descriptors: usize,
    unix_sockets: usize,
    files: Vec<PathBuf>,
    shared_memory_files: Vec<PathBuf>,
}

impl Traces {
    /// What there is now; nothing while somebody starts or ends.
    pub fn of(scene: &Scene, serving: &Serving) -> Option<Self> {
        let [slots] = &scene.leftovers()[..] else { return None };
        Some(Self {
            processes: processes(scene).len(),
            proxy_descriptors: serving.descriptors(),
            decoder_descriptors: memory_descriptors(decoder(serving)?),
            unix_sockets: serving.unix_sockets(),
            files: files(slots),
            shared_memory_files: files(Path::new("/dev/shm")).into_iter().filter(|file| is_ours(file)).collect(),
        })
    }

    /// Waits until all is as it was: what somebody leaves may take a moment to go.
    ///
    /// # Panics
    /// It never is.
    pub fn are_again(&self, scene: &Scene, serving: &Serving, after: &str) {
        let mut found = None;
        eventually(&format!("everything is as before {after}: {self:?}"), || {
            let now = Self::of(scene, serving);
            let are_same = now.as_ref() == Some(self);
            if found != now {
                eprintln!("{after}: {now:?}");
                found = now;
            }
            are_same.then_some(())
        });
    }
}

/// The processes of a scene, whoever started them. A dead one that nobody has waited for is none.
///
/// # Panics
/// There is no /proc.
pub fn processes(scene: &Scene) -> Vec<u32> {
    let mark = format!("TMPDIR={}", scene.path("tmp").display());
    let is_marked = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted");
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(is_marked).collect()
}

/// The decoder's process.
pub fn decoder(serving: &Serving) -> Option<u32> {
    child_with(serving, "--slot-save-path")
}

/// The provider's process.
pub fn provider(serving: &Serving) -> Option<u32> {
    child_with(serving, "--tokens")
}

fn child_with(serving: &Serving, argument: &str) -> Option<u32> {
    let has_argument = |id: &u32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    };
    serving.children().into_iter().find(has_argument)
}

fn memory_descriptors(process: u32) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
    let links = entries.filter_map(|entry| entry.ok()?.path().read_link().ok());
    links.filter(|link| link.to_string_lossy().starts_with("/memfd:")).count()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

fn is_ours(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("kvshare"))
}
