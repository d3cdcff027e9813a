//! A step of a Qwen3 model as phases, and steps that are refused.

use super::*;
use kernels::ops::{Activation, Attention, KvShape};

const T: DType = DType::Bf16;
const HIDDEN: usize = 1024;
const HEADS: Heads = Heads { q: 16, kv: 8, dim: 128, v_dim: 128 };
const NORM: norm::Params = norm::Params { weight: 7, bias: 0, eps: 1e-6, subtract_mean: 0 };
/// The residual stream, its norm, what is added to it, qkv, what attention gives, inside the MLP twice, logits.
const X: View = View { ptr: 1, dtype: DType::F32, rows: 1, width: HIDDEN, most_rows: 1 };
const NORMED: View = View { ptr: 2, dtype: T, rows: 1, width: HIDDEN, most_rows: 1 };
const DELTA: View = View { ptr: 3, ..X };
const QKV: View = View { ptr: 4, dtype: T, rows: 1, width: 4096, most_rows: 1 };
const ATTENDED: View = View { ptr: 5, dtype: T, rows: 1, width: 2048, most_rows: 1 };
const GATE_UP: View = View { ptr: 6, dtype: T, rows: 1, width: 6144, most_rows: 1 };
const INNER: View = View { ptr: 7, dtype: T, rows: 1, width: 3072, most_rows: 1 };
const LOGITS: View = View { ptr: 8, dtype: DType::F32, rows: 1, width: 151_936, most_rows: 1 };

fn product(x: View, w: CUdeviceptr, out: View) -> Op {
    let w = Stored { ptr: w, dtype: T, rows: out.width, cols: x.width };
    Op::Product { x, w, bias: 0, epilogue: Epilogue::Store, out }
}

fn cache() -> Cache {
    let (kv_heads, head_dim) = (HEADS.kv, HEADS.dim);
    let shape = KvShape { num_blocks: 9, block_size: 16, kv_heads, head_dim, v_head_dim: 128, shared: false, dtype: T };
    Cache { keys: 100, values: 101, shape, scales: KvScales::default(), first_block: 102 }
}

fn attention() -> Attention {
    Attention { heads: HEADS, scale: 0.1, window: None, soft_cap: None, sinks: None, alibi: None }
}

fn rotation() -> Op {
    let rope = Rope { inv_freq: ops::Vector(0), rotary_dim: 128, style: RopeStyle::Halves, mscale: 1.0 };
    Op::Rotation { qkv: QKV, heads: HEADS, rope: Some((rope, 103)), cache: cache() }
}

fn attend(attention: Attention) -> Op {
    Op::Attention { qkv: QKV, attention, cache: cache(), out: ATTENDED }
}

/// A step of a Qwen3 model of two layers.
fn step() -> Vec<Op> {
    let table = Stored { ptr: 50, dtype: T, rows: LOGITS.width, cols: HIDDEN };
    let mut ops = vec![Op::Embed { table, first_entry: 0, scale: 1.0, out: X }];
    for layer in 0..2 {
        let added = (layer > 0).then_some(DELTA);
        let head_norm = |first_col, heads| Op::HeadNorm { x: QKV, first_col, heads, dim: 128, params: NORM };
        ops.extend([
            Op::Norm { x: X, added, params: NORM, out: NORMED },
            product(NORMED, 60, QKV),
            head_norm(0, HEADS.q),
            head_norm(HEADS.q * 128, HEADS.kv),
            rotation(),
            attend(attention()),
            product(ATTENDED, 61, DELTA),
            Op::Norm { x: X, added: Some(DELTA), params: NORM, out: NORMED },
            product(NORMED, 62, GATE_UP),
            Op::Gated { gate_up: GATE_UP, activation: Activation::Silu, out: INNER },
            product(INNER, 63, DELTA),
        ]);
    }
    ops.extend([Op::Norm { x: X, added: Some(DELTA), params: NORM, out: NORMED }, product(NORMED, 50, LOGITS)]);
    ops
}

#[test]
fn a_layer_is_five_phases() {
    let plan = plan(&step(), 132).unwrap();
    let phases: Vec<_> = plan.phases.iter().map(|phase| (phase.kind, phase.input, phase.output)).collect();
    let layer = [
        (Kind::Product, Input::Normed, Output::Stored),
        (Kind::Attention, Input::Plain, Output::Stored),
        (Kind::Product, Input::Attended, Output::Added),
        (Kind::Product, Input::Normed, Output::Gated),
        (Kind::Product, Input::Plain, Output::Added),
    ];
    assert_eq!(phases[0].0, Kind::Embed);
    assert_eq!(phases[1..6], layer);
    assert_eq!(phases[6..11], layer);
    assert_eq!(phases[11..], [(Kind::Product, Input::Normed, Output::Wide)]);
    assert_eq!(plan.shape, super::Shape { dtype: T, dim: 128, v_dim: 128, group: 2, kv_heads: 8 });
    // What is added goes straight to the residual stream, from which the next norm takes it.
    assert_eq!((plan.phases[3].from, plan.phases[3].to), (ATTENDED.ptr, X.ptr));
    assert_eq!((plan.phases[4].from, plan.phases[4].to), (X.ptr, INNER.ptr));
    assert_eq!((plan.phases[2].normed, plan.phases[2].window, plan.phases[2].block_shift), (1, u32::MAX, 4));
    // Every product has its own matrix, in the order in which they are multiplied.
    let matrices: Vec<u32> = plan.phases.iter().filter(|phase| phase.kind == Kind::Product).map(|p| p.matrix).collect();
    assert_eq!(matrices, (0..9).collect::<Vec<u32>>());
    let gate_up = Weights { rows: 62, outputs: 3072, k: 1024, halves: 2, split: 0 };
    assert_eq!(plan.weights[2], gate_up);
}

fn remove(ops: &mut Vec<Op>, at: usize) {
    ops.remove(at);
}

#[test]
fn what_one_kernel_cannot_do_is_said() {
    let refused = |change: &dyn Fn(&mut Vec<Op>)| {
        let mut ops = step();
        change(&mut ops);
        plan(&ops, 132).unwrap_err()
    };
    let at = |kind: fn(&Op) -> bool| step().iter().position(kind).unwrap();
    let attention_at = at(|op| matches!(op, Op::Attention { .. }));
    let capped = Attention { soft_cap: Some(30.0), ..attention() };
    assert!(refused(&|ops| ops[attention_at] = attend(capped)).contains("soft_cap: Some(30.0)"));
    let narrow = Heads { dim: 96, ..HEADS };
    assert!(refused(&|ops| ops[attention_at] = attend(Attention { heads: narrow, ..attention() })).contains("dim: 96"));
    // Norms of queries alone; attention that does not follow; a product into what nobody reads next; no logits.
    assert!(refused(&|ops| remove(ops, attention_at - 2)).contains("norms of some heads"));
    assert!(refused(&|ops| remove(ops, attention_at)).contains("does not follow"));
    assert!(refused(&|ops| remove(ops, attention_at + 2)).contains("f32"));
    assert!(refused(&|ops| ops.truncate(ops.len() - 1)).contains("logits"));
    // A row that was not made yet, and a sum that comes later.
    assert!(refused(&|ops| ops[2] = product(INNER, 60, QKV)).contains("nobody made"));
    assert!(refused(&|ops| ops[1] = Op::Norm { x: X, added: Some(DELTA), params: NORM, out: NORMED }).contains("Norm"));
    let accumulated = |op: &mut Op| {
        if let Op::Product { epilogue, .. } = op {
            *epilogue = Epilogue::Accumulate;
        }
    };
    assert!(refused(&|ops| accumulated(&mut ops[2])).contains("Accumulate"));
    assert!(refused(&|ops| remove(ops, 0)).contains("embedding"));
}

#[test]
fn warps_have_equal_shares_of_rows() {
    // Rows of a block, columns, parts: of Qwen3-0.6B and Llama-8B on 132 multiprocessors.
    for (rows, k, parts) in [(32, 1024, 1), (8, 2048, 2), (8, 3072, 2), (48, 1024, 1), (47, 4096, 1), (32, 14336, 1)] {
        assert_eq!(1 << split(rows, k), parts, "{rows} rows of {k}");
    }
    assert_eq!(split(1, 14336), 3);
    assert_eq!(split(SUMS, 14336), 0);
}
