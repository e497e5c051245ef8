//! Waiting for a provider's device, whose work may outlast the provider.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::map::{Access, CPU_ACCESS_TIMEOUT, Fence, MapError};

/// What a driver may need to end the work of a process that was killed.
const LEAST: Duration = Duration::from_secs(1);

/// Waits until no device is to write to `memory` any more: until `limit`, but at least [`LEAST`] and at most
/// [`CPU_ACCESS_TIMEOUT`]. Memory that keeps no fences has nothing to wait for.
///
/// A decoder's own driver need not look at the fences of memory that it is handed back.
pub(super) fn wait_for_writers(memory: &[OwnedFd], limit: Instant) -> Result<(), MapError> {
    let now = Instant::now();
    let deadline = limit.clamp(now + LEAST, now + CPU_ACCESS_TIMEOUT);
    memory.iter().try_for_each(|memory| match Fence::export(memory, Access::ReadOnly) {
        Ok(fence) => fence.wait(deadline),
        Err(MapError::NoFences) => Ok(()),
        Err(error) => Err(error),
    })
}
