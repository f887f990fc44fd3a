//! A toy machine and random programs for it: what a plan promises, without kernels.

use calla_gpu::{
    Access, Binding, BufferId, Dispatch, Dtype, Part, Place, Range, Recording, Scratch,
};
use calla_testkit::Random;
use std::collections::HashMap;

/// Bytes of each buffer of a random program, which has this many.
const BUFFER_BYTES: u64 = 48;
const BUFFERS: u32 = 3;

/// The buffer that random programs do not use.
pub const ARENA: BufferId = BufferId(BUFFERS);

/// Memory whose bytes are noise until they are written.
#[derive(Clone, Debug)]
pub struct Machine {
    memory: HashMap<Place, Vec<u8>>,
    scratch_noise: u64,
    /// What each dispatch found in the ranges that it touches, those that it only writes included: a hash by label.
    pub found: HashMap<String, u64>,
}

impl Machine {
    /// Buffers of random programs always start with the same bytes, temporaries and the arena with those of a seed.
    pub fn new(scratch_noise: u64) -> Self {
        Self { memory: HashMap::new(), scratch_noise, found: HashMap::new() }
    }

    fn bytes(&mut self, range: Range) -> &mut [u8] {
        let (seed, id) = match range.place {
            Place::Buffer(id) if id != ARENA => (0, u64::from(id.0)),
            Place::Buffer(_) => (self.scratch_noise, 0),
            Place::Scratch(n) => (self.scratch_noise, u64::from(n)),
        };
        // Larger than any place of these tests.
        let noise = || {
            let mut random = Random::new(seed << 32 | id);
            (0..1 << 14).map(|_| random.bits() as u8).collect()
        };
        let memory: &mut Vec<u8> = self.memory.entry(range.place).or_insert_with(noise);
        &mut memory[range.start as usize..(range.start + range.len) as usize]
    }

    /// Runs a dispatch: each byte that it writes is a hash of its label and of all that it reads.
    pub fn run(&mut self, dispatch: &Dispatch) {
        let (mut read, mut old) = (Hash::of(dispatch.label.as_bytes()), Hash::of(&[]));
        for Binding { range, access } in &dispatch.bindings {
            let bytes = self.bytes(*range);
            if access.reads() {
                read.add(bytes);
            }
            old.add(bytes);
        }
        self.found.insert(dispatch.label.clone(), read.0 ^ old.0.rotate_left(1));
        for (index, Binding { range, access }) in dispatch.bindings.iter().enumerate() {
            if access.writes() {
                let mut random = Random::new(read.0 ^ index as u64);
                self.bytes(*range).fill_with(|| random.bits() as u8);
            }
        }
    }

    /// What the buffers of a random program hold.
    pub fn buffers(&mut self) -> Vec<Vec<u8>> {
        let whole = |id| Range { place: Place::Buffer(BufferId(id)), start: 0, len: BUFFER_BYTES };
        (0..BUFFERS).map(|id| self.bytes(whole(id)).to_vec()).collect()
    }
}

/// FNV-1a.
#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    fn of(bytes: &[u8]) -> Self {
        let mut hash = Self(0xcbf2_9ce4_8422_2325);
        hash.add(bytes);
        hash
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A dispatch that binds ranges; `label` must be one of a kind.
pub fn dispatch(label: &str, bindings: &[(Range, Access)]) -> Dispatch {
    let bind = |dispatch: Dispatch, &(range, access): &(Range, Access)| match access {
        Access::Read => dispatch.read_part(range, range.len),
        Access::Write => dispatch.write_part(range, range.len),
        Access::ReadWrite => dispatch.read_write_part(range, range.len, range.len),
    };
    bindings.iter().fold(Dispatch::new("toy"), bind).label(label)
}

/// A program of `len` dispatches on a few buffers and temporaries, which reads no temporary before it is written.
pub fn program(len: usize, random: &mut Random) -> Recording {
    let mut recording = Recording::default();
    // Temporaries, and how many of their first bytes are written.
    let mut written: Vec<(Range, u64)> = vec![];
    for index in 0..len {
        let mut bindings = vec![];
        // A new temporary now and then, else the newer ones: those before them die.
        if written.is_empty() || random.one_in(2) {
            let cols = random.range(0..=200) as u32;
            written.push((recording.tensor(1, cols, Dtype::Bf16).range, 0));
        }
        for _ in 0..random.range(1..=4) {
            let access = *random.pick(&[Access::Read, Access::Write, Access::ReadWrite]);
            let range = if random.one_in(3) {
                let place = Place::Buffer(BufferId(random.range(0..=BUFFERS as usize - 1) as u32));
                part(Range { place, start: 0, len: BUFFER_BYTES }, random)
            } else {
                let newest = written.len() - 1 - random.range(0..=(written.len() - 1).min(3));
                let (whole, defined) = &mut written[newest];
                if access == Access::Write {
                    let len = random.range(0..=whole.len as usize) as u64;
                    let start = random.range(0..=*defined.min(&mut (whole.len - len)) as usize);
                    Range { start: start as u64, len, ..*whole }
                } else {
                    part(Range { len: *defined, ..*whole }, random)
                }
            };
            bindings.push((range, access));
        }
        // What a dispatch writes is defined for those after it.
        for (range, access) in &bindings {
            if let (Place::Scratch(n), true) = (range.place, access.writes()) {
                let defined = &mut written[n as usize].1;
                *defined = (*defined).max(range.start + range.len);
            }
        }
        let part = if index % 2 == 0 { Part::Attention } else { Part::Moe };
        recording.push(part, dispatch(&format!("toy {index}"), &bindings));
    }
    recording
}

/// Some bytes of a range, sometimes none.
fn part(of: Range, random: &mut Random) -> Range {
    let start = random.range(0..=of.len as usize) as u64;
    let len = random.range(0..=(of.len - start) as usize) as u64;
    Range { start: of.start + start, len, ..of }
}
