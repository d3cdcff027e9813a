//! Launches `kernels/cuda/csrc/sampling/sample*.cu`: settings of slots travel once, a step sends its rows, and its
//! results come when they are asked for.

pub(crate) mod layout;

use std::collections::VecDeque;

use cudarc::driver::sys::CUdeviceptr;

use crate::jit::layouts::twin;
use crate::jit::specialization::HOPPER;
use crate::runtime::activations::View;
use crate::runtime::context::{Event, Memory, Pinned};
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::upload::Upload;
use crate::sampling::layout::{CUT_BYTES, DETAILS_NUMBERS, MOST_BIASES, PARAMS_BYTES, ROW_NUMBERS, SPLITS};
use crate::sampling::layout::{can_sample, masks_numbers, read_row, row_bytes, write_masks, write_row, write_settings};
use crate::whole_step::BestTo;
use kernels::ops::DType;
use kernels::sample::{STEPS_IN_FLIGHT, SampleParams, SampleRow, Sampled, SlotMask, Ticket};

/// Masks that there is room for at least, once there is one: making room again lets go of captured steps.
const LEAST_MASKS: usize = 64;
/// Blocks that share a mask.
const MASK_BLOCKS: usize = 4;

/// `struct Tables` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tables {
    params: CUdeviceptr,
    masks: CUdeviceptr,
    biased: CUdeviceptr,
    biases: CUdeviceptr,
    counts: CUdeviceptr,
    last: CUdeviceptr,
    vocab: u32,
    words: u32,
}

twin!(Tables = "Tables" { params, masks, biased, biases, counts, last, vocab, words });

/// What is found out about rows on the way to their tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Findings {
    best: CUdeviceptr,
    cuts: CUdeviceptr,
}

/// How a slot's token is found; what comes later needs all kernels of what comes before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Draw {
    /// It is the best one.
    Greedy,
    /// Drawn from all tokens.
    All,
    /// Drawn from those that top-k and top-p leave.
    Cut,
}

/// What the rows of a step need of the kernels.
struct Needs {
    /// None needs more than this.
    draw: Draw,
    /// Some row wants log-probabilities.
    described: bool,
}

impl Draw {
    fn of(params: &SampleParams) -> Self {
        match params.inverse_temperature {
            None => Self::Greedy,
            Some(_) if params.top_k > 0 || params.top_p < 1.0 => Self::Cut,
            Some(_) => Self::All,
        }
    }
}

/// Whether nothing but stops comes between the logits and the best of them.
fn is_plain(params: &SampleParams) -> bool {
    params.inverse_temperature.is_none()
        && params.allowed.is_empty()
        && params.forbidden.is_empty()
        && !params.masked
        && params.bias.is_empty()
        && params.penalties.is_none()
        && params.logprobs.is_none()
}

/// What slots have on the device, and steps whose results nobody has taken.
#[derive(Default)]
pub(crate) struct Slots {
    memory: Option<Memory>,
    count: usize,
    vocab: usize,
    tables: Tables,
    findings: Findings,
    /// Log-probabilities that each slot wants.
    wanted: Vec<Option<usize>>,
    /// Which kernels each slot needs.
    draws: Vec<Draw>,
    /// Whose token is the one with the best logit, whatever the row; and where stops are held back.
    plain: Vec<bool>,
    holds: Vec<bool>,
    /// Settings that wait for the next step: their numbers, and where each slot's begin.
    settings: Vec<u32>,
    starts: Vec<u32>,
    /// A step's rows and settings on their way, and where the rows were sent to.
    rows: Upload,
    sent: CUdeviceptr,
    upload: Upload,
    /// Masks on their way.
    masks: Upload,
    /// Results of steps, which kernels write to the host's memory, and when all of a step's are there.
    buffers: Vec<(Pinned, Event)>,
    flights: VecDeque<Flight>,
    next: u64,
}

/// A step under way.
struct Flight {
    ticket: Ticket,
    /// Of each row.
    wanted: Vec<Option<usize>>,
}

impl Slots {
    pub(crate) fn set_count(&mut self, device: &mut Device, count: usize, vocab: usize) {
        self.flights.clear();
        self.settings.clear();
        self.starts.clear();
        self.wanted.clear();
        self.wanted.resize(count, None);
        self.draws.clear();
        self.draws.resize(count, Draw::Greedy);
        (self.plain, self.holds) = (vec![true; count], vec![false; count]);
        if count <= self.count && vocab == self.vocab {
            return;
        }
        device.synchronize();
        self.memory = None;
        self.buffers.clear();
        (self.count, self.vocab) = (count, vocab);
        let words = vocab.div_ceil(32);
        let sizes = [
            count * PARAMS_BYTES,
            count * 2 * words * 4,
            count * words * 4,
            count * MOST_BIASES * 8,
            count * vocab * 2,
            count * 4,
            count * SPLITS * 8,
            count * CUT_BYTES,
        ];
        let bytes = sizes.iter().map(|size| size.next_multiple_of(256)).sum();
        self.memory = device.allocate(bytes, "sampling");
        // Cuts begin as zeros.
        self.memory.iter().for_each(|memory| device.clear(memory));
        let mut at = self.memory.as_ref().map_or(0, |memory| memory.ptr);
        let places = sizes.map(|size| {
            let place = at;
            at += size.next_multiple_of(256) as u64;
            place
        });
        let [params, masks, biased, biases, counts, last, best, cuts] = places;
        let (vocab, words) = (vocab as u32, words as u32);
        self.tables = Tables { params, masks, biased, biases, counts, last, vocab, words };
        self.findings = Findings { best, cuts };
        self.rows.reserve(device, count * ROW_NUMBERS);
        for _ in 0..STEPS_IN_FLIGHT {
            let (pinned, event) = (device.pin(count * (1 + DETAILS_NUMBERS) * 4), device.event());
            self.buffers.extend(pinned.zip(event));
        }
    }

    pub(crate) fn can_sample(&self, params: &SampleParams) -> bool {
        can_sample(params, self.vocab)
    }

    pub(crate) fn set(&mut self, slot: u32, params: &SampleParams, counts: &[(u32, u32)]) {
        assert!(self.can_sample(params), "parameters that were not agreed on: {params:?}");
        self.wanted[slot as usize] = params.logprobs;
        self.draws[slot as usize] = Draw::of(params);
        self.plain[slot as usize] = is_plain(params);
        self.holds[slot as usize] = !params.stops.is_empty();
        self.starts.push(self.settings.len() as u32);
        write_settings(slot, params, counts, self.vocab, &mut self.settings);
    }

    /// Sends masks of slots, and queues what puts them in the place of the slots' last ones.
    pub(crate) fn set_masks(&mut self, device: &mut Device, masks: &[SlotMask<'_>]) {
        if masks.is_empty() {
            return;
        }
        // A new sequence's settings clear its mask.
        self.send_settings(device);
        let room = masks.len().next_power_of_two().max(LEAST_MASKS).min(self.count.max(masks.len()));
        self.masks.reserve(device, masks_numbers(room, self.vocab));
        let vocab = self.vocab;
        let count = masks_numbers(masks.len(), vocab);
        let sent = self.masks.send(device, count, |numbers| write_masks(masks, vocab, numbers));
        let shape = Shape { grid: [MASK_BLOCKS, masks.len()], block: 256, shared: 0 };
        device.launch(Name::of("sample_masks", &[]), shape, args![self.tables, sent, masks.len() as u32]);
    }

    /// Where each slot's last token lies.
    pub(crate) fn last_tokens(&self) -> CUdeviceptr {
        self.tables.last
    }

    /// Where the token of the next step goes, if its only row gets the best one, whatever else is known of its slot.
    pub(crate) fn best(&self, rows: &[SampleRow]) -> Option<BestTo> {
        let &[SampleRow { row: 0, slot, hold_stops, .. }] = rows else { return None };
        let (results, _) = self.buffers.get(buffer_of(Ticket(self.next)))?;
        let plain = self.plain[slot as usize] && !(hold_stops && self.holds[slot as usize]);
        plain.then(|| BestTo { last: self.tables.last + u64::from(slot) * 4, result: results.on_device() })
    }

    /// Ends a step whose rows were sent ([`Self::send`]): chooses from `logits`, if there are any, of `padded` rows.
    pub(crate) fn end(
        &mut self,
        device: &mut Device,
        logits: Option<View>,
        rows: &[SampleRow],
        padded: usize,
    ) -> Ticket {
        if let Some(logits) = logits {
            assert!(rows.iter().all(|row| (row.row as usize) < logits.rows), "rows of {} rows of logits", logits.rows);
            let draw = rows.iter().map(|row| self.draws[row.slot as usize]).max().unwrap_or(Draw::Greedy);
            let described = rows.iter().any(|row| self.wanted[row.slot as usize].is_some());
            self.launch(device, logits, padded, Needs { draw, described });
        }
        self.expect(device, rows)
    }

    /// Sends rows, with rows of no slot after them, up to `padded`, and the settings that wait.
    pub(crate) fn send(&mut self, device: &mut Device, rows: &[SampleRow], padded: usize) {
        assert!(self.flights.len() < STEPS_IN_FLIGHT, "steps under way, and results nobody takes");
        assert!(padded <= self.count, "{padded} rows for {} slots", self.count);
        self.sent = self.rows.send(device, padded * ROW_NUMBERS, |numbers| {
            let own = rows.iter().map(Some).chain(std::iter::repeat(None));
            numbers.chunks_exact_mut(ROW_NUMBERS).zip(own).for_each(|(to, row)| write_row(row, to));
        });
        self.send_settings(device);
    }

    /// Queues the sampling of `rows` rows of those sent.
    fn launch(&self, device: &mut Device, logits: View, rows: usize, Needs { draw, described }: Needs) {
        assert_eq!((logits.width, logits.dtype), (self.vocab, DType::F32), "logits, and their width");
        let (tables, data, Findings { best, cuts }) = (self.tables, self.sent, self.findings);
        let Some((results, _)) = self.buffers.get(buffer_of(Ticket(self.next))) else { return };
        let tokens = results.on_device();
        let details = tokens + (self.count * 4) as u64;
        let shared_by_blocks = Shape { grid: [SPLITS, rows], block: 256, shared: 0 };
        let name = Name::of("sample_row", &[]);
        let cluster = Shape { grid: [SPLITS, 1], block: 256, shared: row_bytes(self.vocab) };
        let in_one = draw <= Draw::All && !described && device.context.arch >= HOPPER;
        if in_one && device.takes_clusters(name, cluster) {
            let shape = Shape { grid: [SPLITS, rows], ..cluster };
            return device.launch_early(name, shape, args![tables, data, logits.ptr, tokens]);
        }
        let name = Name::in_file("sample", "sample_best", &[]);
        device.launch_early(name, shared_by_blocks, args![tables, data, logits.ptr, best]);
        let before: &[&'static str] = match draw {
            Draw::Greedy => &[],
            Draw::All => &["sample_count"],
            Draw::Cut => &["sample_count", "sample_gather", "sample_regions"],
        };
        for function in before {
            let name = Name::in_file("sample_cut", function, &[]);
            device.launch_early(name, shared_by_blocks, args![tables, data, logits.ptr, best, cuts]);
        }
        let shape = Shape { grid: [rows, 1], block: 1024, shared: 0 };
        let arguments = args![tables, data, logits.ptr, best, cuts, tokens, details];
        device.launch_early(Name::of("sample", &[]), shape, arguments);
    }

    /// Notes when the results are there.
    fn expect(&mut self, device: &mut Device, rows: &[SampleRow]) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let wanted = rows.iter().map(|row| self.wanted[row.slot as usize]).collect();
        if let Some((_, event)) = self.buffers.get(buffer_of(ticket)) {
            device.attempt(|| "an event".to_owned(), |_| event.record());
        }
        self.flights.push_back(Flight { ticket, wanted });
        ticket
    }

    /// Whether a step's results are on the host. After a fault they are as much there as they will ever be.
    pub(crate) fn is_done(&self, device: &Device, ticket: Ticket) -> bool {
        device.fault().is_some() || self.buffers.get(buffer_of(ticket)).is_none_or(|(_, event)| event.is_done())
    }

    pub(crate) fn take(&mut self, device: &mut Device, ticket: Ticket, out: &mut Vec<Sampled>) {
        let Flight { ticket: oldest, wanted } = self.flights.pop_front().expect("a step under way");
        assert_eq!(oldest, ticket, "results are taken in the order of their steps");
        let Some((pinned, event)) = self.buffers.get(buffer_of(ticket)) else { return };
        device.attempt(|| "a step".to_owned(), |_| event.wait());
        let numbers: &[u32] = pinned.slice(self.count * (1 + DETAILS_NUMBERS));
        let (tokens, details) = numbers.split_at(self.count);
        let rows = tokens.iter().zip(details.chunks_exact(DETAILS_NUMBERS)).zip(wanted);
        out.extend(rows.map(|((token, details), top)| read_row(*token, details, top, self.vocab)));
    }

    fn send_settings(&mut self, device: &mut Device) {
        if self.starts.is_empty() {
            return;
        }
        let total = self.starts.len() + self.settings.len();
        self.upload.reserve(device, total.next_power_of_two().max(1 << 16));
        let (starts, settings) = (&self.starts, &self.settings);
        let sent = self.upload.send(device, total, |numbers| {
            let (to, rest) = numbers.split_at_mut(starts.len());
            to.iter_mut().zip(starts).for_each(|(to, start)| *to = starts.len() as u32 + start);
            rest.copy_from_slice(settings);
        });
        let tables = self.tables;
        let name = Name::of("sample_params", &[]);
        let shape = Shape { grid: [self.starts.len(), 1], block: 256, shared: 0 };
        device.launch(name, shape, args![tables, sent]);
        self.starts.clear();
        self.settings.clear();
    }
}

/// Steps take turns.
fn buffer_of(ticket: Ticket) -> usize {
    ticket.0 as usize % STEPS_IN_FLIGHT
}
