//! How a provider is run: anew for each prompt, or one that stays.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kvshare::handoff::{Cancel, Destination, ProviderFailure, ProviderProgram, ProviderReport, ResidentProvider};

use super::cancellable::{Outcome, cancellable, panicked};

/// A provider as the proxy has it.
#[derive(Clone, Debug)]
pub enum Provider {
    /// A program that is started for each prompt.
    Once(ProviderProgram),
    /// A program that is started once.
    Resident(Resident),
}

/// A resident provider on a thread of its own, which lives as long as this and its clones: a program that asked to end with its
/// parent ends with the thread that started it.
#[derive(Clone, Debug)]
pub struct Resident {
    jobs: mpsc::Sender<Job>,
    time_limit: Duration,
}

type Job = Box<dyn FnOnce(&mut ResidentProvider) + Send>;

/// What runs one prompt.
#[derive(Debug)]
pub enum Runner<'a> {
    /// A fresh process.
    Once(&'a ProviderProgram),
    /// The one that stays.
    Resident(&'a mut ResidentProvider),
}

impl Runner<'_> {
    /// Has the provider prefill `tokens`; see [`ProviderProgram::run`] and [`ResidentProvider::run`].
    ///
    /// # Errors
    /// [`ProviderFailure`] says what went wrong, and whether anything may have been written or still be.
    pub fn run(
        self,
        tokens: &[i32],
        destination: Destination<'_>,
        directory: &Path,
        cancel: &Cancel,
        log: &mut dyn FnMut(&str),
    ) -> Result<ProviderReport, ProviderFailure> {
        match self {
            Self::Once(program) => program.run(tokens, destination, directory, Some(cancel), log),
            Self::Resident(provider) => provider.run(tokens, destination, directory, Some(cancel), log),
        }
    }
}

impl Provider {
    /// How long a prefill may take.
    pub fn time_limit(&self) -> Duration {
        match self {
            Self::Once(program) => program.time_limit,
            Self::Resident(resident) => resident.time_limit,
        }
    }

    /// Does `work` on a thread that may block, with what runs a prompt. Dropping the future cancels it; the thread keeps what
    /// `work` holds until that has ended.
    ///
    /// # Errors
    /// There is no descriptor or no thread left, or `work` panicked.
    pub async fn cancellable<T: Send + 'static>(
        &self,
        work: impl FnOnce(Runner<'_>, &Cancel) -> T + Send + 'static,
    ) -> io::Result<T> {
        match self {
            Self::Once(program) => {
                let program = program.clone();
                cancellable(move |cancel| work(Runner::Once(&program), cancel)).await
            }
            Self::Resident(resident) => resident.cancellable(work).await,
        }
    }
}

impl Resident {
    /// A provider that is started at its first prompt, or by [`start`](Self::start).
    ///
    /// # Errors
    /// There is no thread left.
    pub fn new(program: ProviderProgram) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let time_limit = program.time_limit;
        thread::Builder::new().name("provider".to_owned()).spawn(move || {
            let mut provider = ResidentProvider::new(program.clone());
            for job in queue {
                // Whoever waits for the job learns of it; the process is in an unknown state.
                if catch_unwind(AssertUnwindSafe(|| job(&mut provider))).is_err() {
                    provider = ResidentProvider::new(program.clone());
                }
            }
            let _ = provider.stop(&mut |_| ());
        })?;
        Ok(Self { jobs, time_limit })
    }

    /// Has it start now, so that its first prompt need not wait for that. `log` gets its words, and `failed` why it did not.
    pub fn start(
        &self,
        directory: &Path,
        mut log: impl FnMut(&str) + Send + 'static,
        failed: impl FnOnce(ProviderFailure) + Send + 'static,
    ) {
        let directory = directory.to_owned();
        // Were the thread gone, the first prompt would say so.
        let _ = self.jobs.send(Box::new(move |provider| {
            if let Err(failure) = provider.start(&directory, None, &mut log) {
                failed(failure);
            }
        }));
    }

    async fn cancellable<T: Send + 'static>(
        &self,
        work: impl FnOnce(Runner<'_>, &Cancel) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (cancel, sender, outcome) = Outcome::of_work()?;
        let job: Job = Box::new(move |provider| drop(sender.send(work(Runner::Resident(provider), &cancel))));
        self.jobs.send(job).map_err(|_| panicked())?;
        outcome.get().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_the_next_is_done() {
        let resident = Resident::new(ProviderProgram::new("/no/such/provider", "model.gguf")).unwrap();
        let provider = Provider::Resident(resident);
        let failed = provider.cancellable(|_, _| -> u8 { panic!("on purpose") }).await;
        assert_eq!(failed.unwrap_err().to_string(), "a step of the handoff panicked");
        assert_eq!(provider.cancellable(|_, _| 7).await.unwrap(), 7);
    }
}
