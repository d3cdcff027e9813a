//! A step of a Qwen3 model as phases, and steps that are refused.

use super::*;
use crate::fusion::samples::*;
use kernels::ops::Attention;

/// A step of a Qwen3 model of two layers.
fn step() -> Vec<Op> {
    let table = Stored { ptr: 50, dtype: T, rows: LOGITS.width, cols: HIDDEN };
    let mut ops = vec![Op::Embed { table, first_entry: 0, scale: 1.0, out: X }];
    for layer in 0..2 {
        ops.push(if layer > 0 { ADD_NORM } else { Op::Norm(SPLIT.whole()) });
        ops.extend([QKV_GEMM, Q_NORM, K_NORM, ROPE, ATTENTION, O_GEMM, ADD_NORM, GATE_UP_GEMM, GATE, DOWN_GEMM]);
    }
    ops.extend([ADD_NORM, gemm(NORMED, 50, LOGITS)]);
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
    let attention_at = at(|op| matches!(op, Op::Attention(_)));
    let capped = Attention { soft_cap: Some(30.0), ..LAYER };
    assert!(refused(&|ops| ops[attention_at] = attention(capped)).contains("soft_cap: Some(30.0)"));
    let narrow = Heads { dim: 96, ..HEADS };
    assert!(refused(&|ops| ops[attention_at] = attention(Attention { heads: narrow, ..LAYER })).contains("dim: 96"));
    // Norms of queries alone; attention that does not follow; a GEMM whose output no operation reads next; no logits.
    assert!(refused(&|ops| remove(ops, attention_at - 2)).contains("norms of some heads"));
    assert!(refused(&|ops| remove(ops, attention_at)).contains("does not follow"));
    assert!(refused(&|ops| remove(ops, attention_at + 2)).contains("f32"));
    assert!(refused(&|ops| ops.truncate(ops.len() - 1)).contains("logits"));
    // A row that was not made yet, and a sum that comes later.
    assert!(refused(&|ops| ops[2] = gemm(INNER, 60, QKV)).contains("no operation made"));
    assert!(refused(&|ops| ops[1] = ADD_NORM).contains("Norm"));
    let accumulated = |op: &mut Op| {
        if let Op::Gemm(gemm) = op {
            gemm.epilogue = Epilogue::Accumulate;
        }
    };
    assert!(refused(&|ops| accumulated(&mut ops[2])).contains("Accumulate"));
    assert!(refused(&|ops| remove(ops, 0)).contains("embedding"));
    assert!(refused(&|ops| ops.insert(2, Op::Opaque("soft_cap"))).contains("soft_cap"));
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
