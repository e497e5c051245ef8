//! What is tested: a running decoder with its provider, or the stand-ins.

use std::path::PathBuf;

use kvshare::handoff::ProviderProgram;
use serde::Serialize;

use super::{GateArguments, GateError};
use crate::cycle::{Cycle, DecoderClient};
use crate::decoder_process::DecoderProcess;
use crate::output::Failure;
use crate::stage::Stage;

/// Who took part, for the reader.
#[derive(Debug, Serialize)]
pub(super) struct Names {
    pub(super) decoder: String,
    pub(super) provider: String,
    pub(super) model: String,
}

/// What is tested.
pub(super) struct Subject {
    /// The handoffs.
    pub(super) cycle: Cycle,
    /// The decoder's process, where it is known.
    pub(super) decoder_id: Option<u32>,
    /// Who takes part.
    pub(super) names: Names,
    /// The decoder, if it is ours: it ends with the test.
    _decoder: Option<DecoderProcess>,
}

impl Subject {
    /// What the arguments name, the stand-ins started.
    pub(super) fn prepare(stage: &Stage, arguments: &GateArguments) -> Result<Self, GateError> {
        let (model, model_name) = match &arguments.model {
            Some(path) => (path.clone(), path.display().to_string()),
            None => (stage.embedded_model()?, "kvshare-tiny (embedded)".to_owned()),
        };
        let (mut provider, provider_name) = match &arguments.prefill_provider {
            Some(program) => (ProviderProgram::new(program, &model), program.display().to_string()),
            None => (stage.reference_provider(model.clone(), &[]), "reference-provider".to_owned()),
        };
        provider.elfs.clone_from(&arguments.elfs);
        let started = match &arguments.backend_url {
            Some(_) => None,
            None => {
                stage.say("starting a decoder");
                Some(stage.decoder(&["--model", &model.to_string_lossy(), "--reserve", "touch"])?)
            }
        };
        let (url, decoder_name) = match (&started, &arguments.backend_url) {
            (Some(decoder), _) => (decoder.address().to_owned(), "fake-exporter, started for this test".to_owned()),
            (None, url) => (url.clone().unwrap_or_default(), url.clone().unwrap_or_default()),
        };
        provider.environment = vec![("ONEBIT_HYBRID_BACKEND_URL".into(), url.clone().into())];
        let cycle = match &started {
            Some(decoder) => stage.cycle(decoder, provider)?,
            None => Cycle { decoder: DecoderClient::new(&url), provider, slot_directory: slot_directory(arguments)? },
        };
        let decoder_id = started.as_ref().map_or(arguments.backend_pid, |decoder| Some(decoder.id()));
        let names = Names { decoder: decoder_name, provider: provider_name, model: model_name };
        Ok(Self { cycle, decoder_id, names, _decoder: started })
    }

    /// How many bytes the decoder has read by system calls, sockets apart (`rchar`, proc_pid_io(5)).
    pub(super) fn decoder_reads(&self) -> Option<u64> {
        let counts = std::fs::read_to_string(format!("/proc/{}/io", self.decoder_id?)).ok()?;
        counts.lines().find_map(|line| line.strip_prefix("rchar:"))?.trim().parse().ok()
    }
}

fn slot_directory(arguments: &GateArguments) -> Result<PathBuf, GateError> {
    let path = arguments.slot_dir.clone().unwrap_or_default();
    if !path.is_dir() {
        return Err(GateError::SlotDirectory { path: path.display().to_string() });
    }
    // The decoder is told of a socket in it, and has another working directory.
    Ok(std::path::absolute(path).map_err(Failure::new)?)
}
