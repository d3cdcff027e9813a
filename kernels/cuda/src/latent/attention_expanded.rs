//! Latent attention of prompts in its expanded form: keys and values of each head are made anew from latent vectors, as
//! much of the context at a time as there is room for. Launches `kernels/cuda/csrc/latent/latent_expand.cu`, a product,
//! and `attention_expanded.cu`.

use cudarc::driver::sys::CUtensorMap;

use crate::CudaBackend;
use crate::attention::backend::AttentionDevice;
use crate::attention::layer::{Layer, Tensors};
use crate::autotune::background::CallSite;
use crate::fusion::op::Op;
use crate::gemm::product::Product;
use crate::jit::sources::Need;
use crate::jit::specialization::{HOPPER, Special};
use crate::latent::attention_latent::{Latent, Step};
use crate::latent::rounds::{EXPANDED, LATENT, Limits, NOPE_DIM, ROWS, Round, Rows, TILE, rounds};
use crate::layers::groups::Group;
use crate::options::LatentForm;
use crate::runtime::activations::View;
use crate::runtime::batch::{self, Pointers};
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::tensor_map::tensor_map;
use crate::weights::Weights;
use kernels::ops::{Act, DType, Epilogue, LatentAttention, Matrix, MatrixGroup, RowSelection};

/// Threads of a block, tiles of keys in shared memory, and most blocks of a cluster.
const THREADS: usize = 384;
const STAGES: usize = 2;
const BLOCKS: usize = 2;
/// `PrefillBlock::prepare` of the kernel: queries, stages of keys and of values, barriers, two tiles' descriptions and
/// numbers, and room to align them.
const SHARED: usize = {
    let [key, value] = EXPANDED;
    let (tiles, barriers) = (2 * (ROWS * key + STAGES * TILE * (key + value)), (4 * STAGES + 8) * 8);
    1024 + tiles + barriers + 2 * (15 + 1) * 4
};
// As much as a block of such devices may have.
const _: () = assert!(SHARED <= 227 << 10);
/// What is kept of a row and head from one round to the next: sums, and of each of four threads four numbers a pair of
/// rows.
const KEPT_BYTES: usize = (EXPANDED[1] + 8) * size_of::<f32>();
/// Elements of a key that are cached as they are.
const ROPE_DIM: usize = EXPANDED[0] - NOPE_DIM;
/// Keys and values of a round take up to this, and are of no more tokens; of rows and heads that go on there are up to
/// this many.
const MADE_BYTES: usize = 128 << 20;
const MOST_TOKENS: usize = 8192;
const KEPT: usize = 1 << 17;
/// Threads of a block that gathers: a warp for each token.
const GATHERERS: usize = 256;

fn special(dtype: DType, blocks: usize) -> Special {
    Special::new("attention_expanded", dtype, &[("BLOCKS", blocks)])
}

/// All kernels for rows of a type.
pub(crate) fn specials(dtype: DType) -> impl Iterator<Item = Special> {
    (1..=BLOCKS).map(move |blocks| special(dtype, blocks))
}

/// What is made for a round, and kept from one to the next, of layers with as many heads.
pub(crate) struct Room {
    heads: usize,
    dtype: DType,
    limits: Limits,
    /// Latent vectors of a round's tokens, and what rotates of their keys.
    latent: Memory,
    rope: Memory,
    /// `[rest of a key | value]` of each head.
    made: Memory,
    sums: Memory,
    counter: Memory,
    /// `rope` and `made` as clusters of one block, or of two, have them copied.
    maps: [[CUtensorMap; 2]; BLOCKS],
}

impl Room {
    /// For steps of up to `most_rows` rows.
    fn new(device: &mut Device, heads: usize, dtype: DType, most_rows: usize) -> Option<Self> {
        let width = heads * (NOPE_DIM + EXPANDED[1]);
        let tokens = (MADE_BYTES / (width * dtype.size()) / TILE * TILE).clamp(TILE, MOST_TOKENS);
        let rows = (KEPT / heads).min(most_rows).next_multiple_of(BLOCKS * ROWS);
        let mut allocate = |bytes: usize| device.allocate(bytes, "keys and values of latent attention");
        let latent = allocate(tokens * LATENT[1] * dtype.size())?;
        let rope = allocate(tokens * ROPE_DIM * dtype.size())?;
        let made = allocate(tokens * width * dtype.size())?;
        let (sums, counter) = (allocate(rows * heads * KEPT_BYTES)?, allocate(size_of::<u32>())?);
        device.clear(&counter);
        let mut map = |memory: &Memory, columns: usize, blocks: usize| {
            let what = || "describing keys and values".to_owned();
            device.attempt(what, |_| tensor_map(memory.ptr, dtype, [tokens, columns], TILE / blocks))
        };
        let mut of = |blocks| Some([map(&rope, ROPE_DIM, blocks)?, map(&made, width, blocks)?]);
        let maps = [of(1)?, of(BLOCKS)?];
        Some(Self { heads, dtype, limits: Limits { tokens, rows }, latent, rope, made, sums, counter, maps })
    }

    /// Some memory as the first rows of a matrix.
    fn view(&self, memory: &Memory, rows: usize, width: usize) -> View {
        View { ptr: memory.ptr, dtype: self.dtype, rows, width, most_rows: self.limits.tokens }
    }

    /// Latent vectors, and what is made of them.
    fn views(&self, tokens: usize) -> [View; 2] {
        let width = self.heads * (NOPE_DIM + EXPANDED[1]);
        [self.view(&self.latent, tokens, LATENT[1]), self.view(&self.made, tokens, width)]
    }
}

/// Whether the kernels are for heads whose queries and values these bring into the latent space and out of it.
fn takes(device: AttentionDevice, absorb: &Group, restore: &Group) -> bool {
    let [_, rank] = LATENT;
    device.arch == HOPPER
        && device.shared_of_block >= SHARED
        && [absorb.n, absorb.k] == [rank, NOPE_DIM]
        && [restore.n, restore.k] == [EXPANDED[1], rank]
        && absorb.count == restore.count
        && [absorb.compute, restore.dtype, restore.compute] == [absorb.dtype; 3]
        && absorb.dtype.size() == 2
}

/// The matrix that makes keys and values of latent vectors, of those that bring queries there and values back.
fn join(device: &mut Device, absorb: &Group, restore: &Group) -> Weights {
    let [_, rank] = LATENT;
    let rows = absorb.count * (absorb.k + restore.n);
    let joined = Weights::empty(device, [rows, rank], absorb.dtype, absorb.dtype);
    let [key_dim, value_dim, columns] = [absorb.k, restore.n, rank].map(|number| number as u32);
    let name = Name::in_file("latent_expand", "latent_join", &[]);
    device.launch(
        name,
        Shape::rows(rows, rank),
        args![joined.ptr(), absorb.ptr(), restore.ptr(), key_dim, value_dim, columns],
    );
    joined
}

/// A layer whose rows are attended to, from and to which.
#[derive(Clone, Copy)]
struct Call {
    tensors: Tensors,
    layer: Layer,
    queries: View,
    out: View,
    batch: Pointers,
}

impl Room {
    /// Queues the gathering of a round's latent vectors.
    fn gather(&self, device: &mut Device, call: Call, round: &Round) {
        let Call { tensors, layer, batch, .. } = call;
        let most = 8 * device.context.multiprocessors;
        let grid = [round.tokens().div_ceil(GATHERERS / 32).min(most), 1];
        device.launch_early(
            Name::in_file("latent_expand", "latent_gather", &[]),
            Shape { grid, block: GATHERERS, shared: 0 },
            args![tensors.keys, self.latent.ptr, self.rope.ptr, batch, layer.block_size, *round],
        );
    }

    /// Queues attention over a round's keys, in clusters of `blocks` blocks.
    fn attend(&self, device: &mut Device, call: Call, round: &Round, blocks: usize) -> bool {
        let Call { tensors, layer, queries, out, batch } = call;
        let row_tiles = round.row_tiles(blocks * ROWS);
        let clusters = (device.context.multiprocessors / blocks).min(self.heads * row_tiles);
        let shape = Shape { grid: [clusters * blocks, 1], block: THREADS, shared: SHARED };
        let [rope, made] = self.maps[blocks - 1];
        let (row_tiles, rotated) = (row_tiles as u32, tensors.qkv.ptr);
        device.launch_special(
            special(self.dtype, blocks),
            shape,
            args![
                out.ptr,
                queries.ptr,
                rotated,
                rope,
                made,
                self.sums.ptr,
                batch,
                layer,
                *round,
                row_tiles,
                self.counter.ptr
            ],
        )
    }
}

impl CudaBackend {
    /// See [`kernels::ops::Load::join_heads`].
    pub(crate) fn join(&mut self, absorb: MatrixGroup, restore: MatrixGroup) -> Option<Matrix> {
        self.device.bind();
        let [absorb, restore] = [absorb, restore].map(|group| &self.groups[group.0 as usize]);
        let serves = self.latent_form != LatentForm::Absorbed && self.attention.backend().may_be_hopper();
        if !serves || !takes((&*self.device.context).into(), absorb, restore) {
            return None;
        }
        let (heads, dtype) = (absorb.count, absorb.dtype);
        if self.room(heads, dtype).is_none() {
            let most_rows = self.acts.most_rows();
            self.expanded.push(Room::new(&mut self.device, heads, dtype, most_rows)?);
            self.device.order_for(Need::LatentAttention);
            specials(dtype).for_each(|special| self.device.order(special));
            self.first_needed.extend(specials(dtype));
        }
        let joined = join(&mut self.device, absorb, restore);
        self.matrices.push(joined);
        Some(Matrix(u32::try_from(self.matrices.len() - 1).expect("far fewer handles")))
    }

    /// Where the room for such layers is.
    fn room(&self, heads: usize, dtype: DType) -> Option<usize> {
        self.expanded.iter().position(|room| (room.heads, room.dtype) == (heads, dtype))
    }

    /// See [`Ops::latent_attention`].
    pub(crate) fn attend_latent(&mut self, latent: LatentAttention, only: Option<RowSelection<'_>>, out: Act) {
        let heads = latent.attention.heads.q;
        let expanded = self.expanded_sequences(latent, only);
        let room = self.room(heads, self.acts.view(latent.absorbed).dtype);
        let (Some(joined), Some(room), true) = (latent.joined, room, expanded.contains(&true)) else {
            return latent.absorbed_form(self, only, out);
        };
        self.append(Op::Opaque("latent_attention"));
        self.batch.turn_to(latent.kv.table);
        if expanded.contains(&false) {
            self.attend_absorbed(latent, &expanded);
            latent.restore_values(self, out);
        }
        let out = self.acts.target(out, self.batch.rows(), heads * latent.value_dim);
        let queries = self.acts.view(latent.queries);
        assert_eq!(queries.width, heads * EXPANDED[0], "width of queries of {heads} heads");
        let chosen = self.batch.spans().zip(&expanded).enumerate().filter(|(_, (_, is_expanded))| **is_expanded);
        let chosen = chosen.map(|(sequence, ((start, count), _))| Rows { sequence, start, count });
        let rounds = rounds(chosen, self.expanded[room].limits);
        let (tensors, mut layer) = self.layer_of(latent, out);
        // Each query head has keys of its own.
        layer.kv_heads = layer.q_heads;
        let call = Call { tensors, layer, queries, out, batch: self.batch.pointers };
        let tiles = |blocks: usize| rounds.iter().map(|round| blocks * round.row_tiles(blocks * ROWS)).sum::<usize>();
        // Rows that go on are in the same tiles in each round.
        let blocks = if 15 * tiles(BLOCKS) <= 16 * tiles(1) { BLOCKS } else { 1 };
        let room = &self.expanded[room];
        for round in &rounds {
            room.gather(&mut self.device, call, round);
            let [x, made] = room.views(round.tokens());
            let w = &self.matrices[joined.0 as usize];
            let mut product = Product { x, w, bias: None, epilogue: Epilogue::Store, out: made, prepared: None };
            let site = CallSite { x, w: joined, bias: None, out: made, gate: None };
            if self.tuner.note(product.problem(None), site) {
                Self::order(&self.matmul, &self.device, &mut product, None);
            }
            self.matmul.run(&mut self.device, product);
            room.attend(&mut self.device, call, round, blocks);
        }
    }

    /// What attention in the latent space is told, where it goes to `out`.
    fn layer_of(&self, latent: LatentAttention, out: View) -> (Tensors, Layer) {
        let absorbed = self.acts.view(latent.absorbed);
        let kv = &self.caches[latent.kv.memory as usize];
        let params = self.attention_params(latent.attention, latent.kv);
        (Tensors::new(absorbed, kv, out), Layer::new(absorbed, params, &self.batch, kv))
    }

    /// Which of a step's sequences are attended to in the expanded form: none of a step of single rows.
    fn expanded_sequences(&self, latent: LatentAttention, only: Option<RowSelection<'_>>) -> Vec<bool> {
        let heads = latent.attention.heads.q;
        let room = self.room(heads, self.acts.view(latent.absorbed).dtype);
        let is_alone = only.is_some_and(|only| self.batch.may_be_alone(only.rows));
        let Some(room) = room.filter(|_| latent.joined.is_some() && !is_alone && self.batch.has(batch::Rows::Several))
        else {
            return Vec::new();
        };
        let (tensors, layer) = self.layer_of(latent, self.acts.view(latent.attended));
        let of = Latent { tensors, layer, kv: &self.caches[latent.kv.memory as usize] };
        if of.kv.maps.is_none() || !of.fits((&*self.device.context).into()) {
            return Vec::new();
        }
        let (limits, always) = (self.expanded[room].limits, self.latent_form == LatentForm::Expanded);
        let multiprocessors = self.device.context.multiprocessors;
        let rows = self.batch.spans().map(|(start, count)| Rows { sequence: 0, start, count });
        rows.map(|rows| rows.count > 1 && (always || rows.gain_by_expanding(heads, multiprocessors, limits))).collect()
    }

    /// Attention of the other sequences, up to values in the latent space.
    fn attend_absorbed(&mut self, latent: LatentAttention, expanded: &[bool]) {
        let heads = latent.attention.heads;
        let attended = self.acts.target(latent.attended, self.batch.rows(), heads.q * heads.v_dim);
        let spans = self.batch.spans().zip(expanded);
        let kept: Vec<usize> = spans.map(|((_, count), is_expanded)| if *is_expanded { 0 } else { count }).collect();
        let sequences = self.batch.kept(&mut self.device, &kept);
        let step = Step::of_some(sequences, &kept, heads.q);
        let (tensors, layer) = self.layer_of(latent, attended);
        let of = Latent { tensors, layer, kv: &self.caches[latent.kv.memory as usize] };
        self.attention.run_latent(&mut self.device, of, step);
    }
}
