//! `kvshare-cli inspect`: what descriptors are, and what lies in the cache that they hold.
//!
//! It only looks: no byte changes, no page is allocated, and a region that shrinks meanwhile is an answer and no crash.
//! [`reader`] is the part that others build on.

mod arguments;
mod cell_values;
mod descriptor;
mod findings;
mod heatmap;
mod holders;
mod json;
mod layout;
mod plot;
pub mod reader;
mod taken;
mod terminal_map;
mod text;

pub use arguments::InspectArguments;
pub use descriptor::{CpuRefusal, Descriptor, InspectError, Inspected};
pub use findings::Finding;
pub use holders::{Holder, Holders};
pub use layout::{LayoutProblem, Surveyed};
pub use taken::TakeError;

pub(crate) use layout::{has_digest, read as read_header};
pub(crate) use taken::Holder as DescriptorHolder;

use std::os::fd::OwnedFd;

use kvshare::fd::FIRST_INHERITED;
use kvshare::header::Header;
use serde_json::Value;

use crate::output::{Failure, print};

/// Everything that was found.
#[derive(Debug)]
pub struct Report {
    /// The descriptors, as they were asked for.
    pub descriptors: Vec<Inspected>,
    /// The header and what lies in the regions that it describes, if one was given that holds together.
    pub layout: Option<Surveyed>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Runs the command. Returns whether nothing is wrong.
///
/// # Errors
/// Arguments that name no tensor or row, a picture that cannot be written.
pub fn run(arguments: &InspectArguments) -> Result<bool, Failure> {
    let holder = taken::Holder::open(arguments.pid).map_err(Failure::new)?;
    let numbers = match &arguments.fds[..] {
        [] => holder.memory_descriptors().map_err(Failure::new)?,
        fds => fds.to_vec(),
    };
    let descriptors: Vec<Inspected> = numbers.iter().map(|number| Inspected::take(&holder, *number)).collect();
    if let Some(tensor) = &arguments.tensor {
        return cell_values::run(arguments, tensor, &descriptors).map(|()| true);
    }
    let report = Report::of(arguments, descriptors);
    if arguments.json {
        print(&format!("{:#}", json::report(&report)))?
    } else {
        print(&text::report(&report))?
    }
    if let (Some(path), Some(layout)) = (&arguments.plot, &report.layout) {
        path.draw(layout, &report.findings)?;
    }
    Ok(report.findings.is_empty())
}

impl Report {
    fn of(arguments: &InspectArguments, descriptors: Vec<Inspected>) -> Self {
        let surveyed = arguments.layout.as_ref().map(|path| {
            let (header, has_digest) = layout::read(path, arguments.model.as_deref())?;
            Surveyed::of(header, has_digest, &descriptors)
        });
        let report = Self::with(surveyed, descriptors);
        if arguments.fds.is_empty() { report.with_all_memory() } else { report }
    }

    /// The same, where all memory of a process was taken and the header may be of a part of it.
    fn with_all_memory(mut self) -> Self {
        if self.layout.as_ref().is_some_and(|surveyed| surveyed.fit.is_err()) {
            for finding in self.findings.iter_mut().filter(|finding| finding.kind == "header") {
                finding.message.push_str("; all of the process's memory was taken, name the cache's with --fds");
            }
        }
        self
    }

    /// What lies in descriptors of this program's own, which a provider was given with `header`.
    pub(crate) fn of_own(header: Header, has_digest: bool, descriptors: Vec<OwnedFd>) -> Self {
        let inspected = (FIRST_INHERITED..).zip(descriptors).map(|(number, own)| Inspected::own(own, number));
        let descriptors: Vec<Inspected> = inspected.collect();
        Self::with(Some(Surveyed::of(header, has_digest, &descriptors)), descriptors)
    }

    /// What was found, for people, without saying what is wrong.
    pub(crate) fn facts_in_words(&self) -> String {
        text::facts(self)
    }

    /// All of it for programs.
    pub(crate) fn as_json(&self) -> Value {
        json::report(self)
    }

    fn with(surveyed: Option<Result<Surveyed, LayoutProblem>>, descriptors: Vec<Inspected>) -> Self {
        let mut findings = findings::of_descriptors(&descriptors);
        let layout = match surveyed {
            None => None,
            Some(Ok(surveyed)) => {
                findings.extend(findings::of_layout(&surveyed));
                Some(surveyed)
            }
            Some(Err(problem)) => {
                findings.push(Finding::layout(&problem));
                None
            }
        };
        Self { descriptors, layout, findings }
    }
}
