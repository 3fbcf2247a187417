//! All processes that are meant, as they come and go: what the formats that show several are fed by.

use std::collections::BTreeMap;

use libvma_dev::stats::Problem;

use crate::choose;
use crate::message::complain;
use crate::options::Options;
use crate::sample::{Sample, Watched};
use crate::wishes;

pub struct Collector<'a> {
    options: &'a Options,
    watched: BTreeMap<u32, Watched>,
    /// Whose file cannot be read; told of once.
    unreadable: BTreeMap<u32, String>,
    /// Those who run now are asked for what is wanted; who comes later begins afresh anyway.
    first: bool,
}

impl<'a> Collector<'a> {
    pub fn new(options: &'a Options) -> Collector<'a> {
        Collector { options, watched: BTreeMap::new(), unreadable: BTreeMap::new(), first: true }
    }

    /// One sample of each, in the order of their numbers.
    pub fn collect(&mut self) -> Vec<Sample> {
        let processes = choose::processes(&self.options.directory, &self.options.choice);
        self.watched.retain(|process, _| processes.contains(process));
        self.unreadable.retain(|process, _| processes.contains(process));
        let mut samples = Vec::new();
        for process in processes {
            if !self.watched.contains_key(&process) {
                match self.open(process) {
                    Ok(opened) => self.watched.insert(process, opened),
                    Err(problem) => {
                        self.explain(process, &problem);
                        continue;
                    }
                };
                self.unreadable.remove(&process);
            }
            let Some(watched) = self.watched.get_mut(&process) else { continue };
            match watched.take() {
                Ok(sample) => samples.push(sample),
                // If it is another one of the same number, that is opened in the next cycle.
                Err(_) => drop(self.watched.remove(&process)),
            }
        }
        self.first = false;
        samples
    }

    fn open(&self, process: u32) -> Result<Watched, Problem> {
        let mut opened = Watched::open(&self.options.directory, process)?;
        if self.first {
            wishes::express(&mut opened, self.options)?;
        }
        Ok(opened)
    }

    fn explain(&mut self, process: u32, problem: &Problem) {
        let text = problem.to_string();
        if self.unreadable.get(&process) != Some(&text) {
            complain(&format!("process {process}: {text}"));
            self.unreadable.insert(process, text);
        }
    }
}
