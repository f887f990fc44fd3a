//! What has to hold when a dispatch is encoded.

use super::{Function, THREADS, World};
use calla_gpu::{Access, Binding, BufferId, Place};
use calla_msl::Memory;
use std::collections::HashMap;

impl World {
    pub(super) fn dispatch(&mut self, encoder: usize, groups: [u32; 3], threads: [u32; 3]) {
        let state = &mut self.encoders[encoder];
        let (pipeline, described) = (state.pipeline, state.described.take());
        let (buffers, bytes) = (state.buffers.clone(), state.bytes.clone());
        let ended = state.ended;
        let Some(pipeline) = pipeline else {
            return self.violation("a dispatch without a pipeline".to_owned());
        };
        let Some(described) = described else {
            return self.violation("a dispatch that nobody asked for".to_owned());
        };
        let Function { entry, constants, declared } = &self.pipelines[pipeline];
        let mut wrong = vec![];
        if ended {
            wrong.push("a dispatch after the end of its encoder".to_owned());
        }
        if *entry != described.entry || *constants != described.constants {
            wrong.push(format!("runs {entry} {constants:?} in place of {}", described.entry));
        }
        for constant in &declared.constants {
            let given = constants.iter().any(|&(index, _)| index == constant.index);
            if (constant.required && !given) || constant.scalar != "uint" {
                wrong.push(format!("function constant {}", constant.name));
            }
        }
        let most = declared.max_threads.unwrap_or(THREADS).min(THREADS);
        let count: u32 = threads.iter().product();
        if count == 0 || count > most || !count.is_multiple_of(32) || threads != described.threads {
            wrong.push(format!("{threads:?} threads, at most {most}"));
        }
        if groups.contains(&0) || groups != described.grid {
            wrong.push(format!("{groups:?} threadgroups of {:?}", described.grid));
        }
        for slot in &declared.slots {
            let (index, name) = (slot.index, &slot.name);
            if let Some(size) = slot.bytes {
                match bytes.get(&index) {
                    None => wrong.push(format!("{name} has no bytes")),
                    Some(bytes) if bytes.len() != size || *bytes != described.params => {
                        wrong.push(format!("{name}: {} bytes, of {size}", bytes.len()));
                    }
                    Some(_) => {}
                }
                continue;
            }
            let Some(&(buffer, offset)) = buffers.get(&index) else {
                wrong.push(format!("{name} is not bound"));
                continue;
            };
            let Some(Binding { range, access }) = described.bindings.get(index as usize) else {
                wrong.push(format!("{name} is not declared by the dispatch"));
                continue;
            };
            let is_declared = Place::Buffer(BufferId(buffer as u32)) == range.place;
            if !is_declared || offset != range.start {
                wrong.push(format!("{name} is buffer {buffer} at {offset}, not {range:?}"));
            }
            if offset + range.len > self.buffers[buffer].bytes {
                wrong.push(format!("{name}: buffer {buffer} is too short for {range:?}"));
            }
            if let Some(reason) = self.buffers[buffer].misused(slot, offset) {
                wrong.push(format!("{name} {reason}"));
            }
            if (slot.memory == Memory::Write) != (*access != Access::Read) {
                wrong.push(format!("{name} is {:?}, bound to {access:?}", slot.memory));
            }
        }
        if buffers.len() + bytes.len() != declared.slots.len() {
            let bound = buffers.len() + bytes.len();
            wrong.push(format!("{bound} slots are bound of {}", declared.slots.len()));
        }
        for binding in described.bindings.iter().filter(|binding| binding.access.writes()) {
            if let Place::Buffer(BufferId(id)) = binding.range.place {
                let commands = self.encoders[encoder].commands;
                self.commands[commands].writes.insert(id as usize);
            }
        }
        self.entries.insert(described.entry.to_owned());
        self.dispatches += 1;
        let state = &mut self.encoders[encoder];
        for binding in &described.bindings {
            let meets = |(other, _): &&(Binding, String)| {
                let writes = binding.access.writes() || other.access.writes();
                writes && binding.range.overlaps(&other.range)
            };
            if let Some((_, label)) = state.since_barrier.iter().find(meets) {
                wrong.push(format!("no barrier after {label}"));
                break;
            }
        }
        let touched = described.bindings.iter();
        state.since_barrier.extend(touched.map(|binding| (*binding, described.label.clone())));
        (state.buffers, state.bytes) = (HashMap::new(), HashMap::new());
        for text in wrong {
            self.violation(format!("{}: {text}", described.label));
        }
    }
}
