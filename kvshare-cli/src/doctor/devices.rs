//! Memory that devices share, and the devices.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::{Check, State};

pub(super) fn checks() -> Vec<Check> {
    vec![udmabuf(), dma_heaps(), drm_nodes(), nvidia(), amd()]
}

/// A device file that can be opened for reading and writing, or why not.
fn open(path: &Path) -> Result<(), std::io::Error> {
    File::options().read(true).write(true).open(path).map(drop)
}

fn udmabuf() -> Check {
    let name = "udmabuf";
    let path = Path::new("/dev/udmabuf");
    let parameter = |file: &str| fs::read_to_string(Path::new("/sys/module/udmabuf/parameters").join(file)).ok();
    let limits = || {
        let number = |file| parameter(file).map_or_else(|| "?".to_owned(), |text| text.trim().to_owned());
        format!("at most {} MiB each, {} pieces", number("size_limit_mb"), number("list_limit"))
    };
    match open(path) {
        Ok(()) => {
            let check = Check::new(name, State::Good, limits());
            let is_small =
                parameter("size_limit_mb").and_then(|text| text.trim().parse().ok()).is_some_and(|mib: u64| mib < 1024);
            match is_small {
                true => check
                    .remedy("echo 1024 > /sys/module/udmabuf/parameters/size_limit_mb (as root) for regions of 1 GiB"),
                false => check,
            }
        }
        Err(_) if !path.exists() => Check::new(name, State::Absent, "no /dev/udmabuf")
            .remedy("modprobe udmabuf (as root), if a device imports memfds"),
        Err(error) => Check::new(name, State::Limited, format!("/dev/udmabuf: {error}"))
            .remedy("give this user access (a udev rule, or group kvm on some systems)"),
    }
}

fn dma_heaps() -> Check {
    listed(
        "DMA heaps",
        entries("/dev/dma_heap", |_| true),
        "no /dev/dma_heap",
        "a kernel with CONFIG_DMABUF_HEAPS has them, if a device needs contiguous memory",
    )
}

fn drm_nodes() -> Check {
    let mut nodes = entries("/dev/dri", |name| name.starts_with("card") || name.starts_with("renderD"));
    for (name, _) in &mut nodes {
        // The driver's name, such as i915, amdgpu or vgem.
        let driver = fs::read_link(format!("/sys/class/drm/{name}/device/driver")).ok();
        if let Some(driver) = driver.as_ref().and_then(|path| path.file_name()) {
            *name = format!("{name} ({})", driver.to_string_lossy());
        }
    }
    listed("DRM nodes", nodes, "no /dev/dri", "a GPU's driver makes them, as does modprobe vgem for trying things out")
}

/// The device files in a directory by name, and whether they can be opened.
fn entries(directory: &str, is_wanted: fn(&str) -> bool) -> Vec<(String, bool)> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = found.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    let mut all: Vec<(String, PathBuf)> = named.filter(|(name, _)| is_wanted(name)).collect();
    all.sort();
    all.into_iter().map(|(name, path)| (name, open(&path).is_ok())).collect()
}

fn listed(name: &'static str, entries: Vec<(String, bool)>, none: &str, remedy: &str) -> Check {
    if entries.is_empty() {
        return Check::new(name, State::Absent, none).remedy(remedy);
    }
    let word =
        |(name, can_open): &(String, bool)| if *can_open { name.clone() } else { format!("{name} (not ours to open)") };
    let found = entries.iter().map(word).collect::<Vec<_>>().join(", ");
    if entries.iter().any(|(_, can_open)| *can_open) {
        return Check::new(name, State::Good, found);
    }
    Check::new(name, State::Limited, found).remedy("add this user to the group of the device files (ls -l shows it)")
}

fn nvidia() -> Check {
    let name = "NVIDIA GPU";
    let version = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let gpus = fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let models: Vec<String> = gpus
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path().join("information")).ok()?;
            Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned())
        })
        .collect();
    let device = Path::new("/dev/nvidiactl");
    match (version.lines().next(), open(device)) {
        (None, _) => Check::new(name, State::Absent, "no NVIDIA driver"),
        (Some(_), Ok(())) => Check::new(name, State::Good, models.join(", ")),
        (Some(_), Err(error)) => {
            Check::new(name, State::Limited, format!("the driver is loaded, but {}: {error}", device.display()))
                .remedy("start the container with the GPU (--gpus all), or give this user access")
        }
    }
}

fn amd() -> Check {
    let (name, device) = ("AMD compute", Path::new("/dev/kfd"));
    match open(device) {
        Ok(()) => Check::new(name, State::Good, "/dev/kfd can be opened"),
        Err(_) if !device.exists() => Check::new(name, State::Absent, "no /dev/kfd"),
        Err(error) => {
            Check::new(name, State::Limited, format!("/dev/kfd: {error}")).remedy("add this user to the group render")
        }
    }
}
