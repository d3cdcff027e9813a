//! What products of packed integer codes reach on the CPU, beside bf16: microseconds, and GB/s of weights as held.
//!
//! `cargo run --release -p kernels --example packed_bench [threads] [isa] [format]`

use kernels::cpu::{CpuBackend, CpuOptions, Isa};
use kernels::ops::{
    Batch, CodeBits, ColumnOrder, DType, Encoding, Epilogue, GgmlBlocks, GgmlType, GroupedCodes, GroupedFormat,
    HostMatrix, InputRounding, Levels, Load, Ops, WeightFormat, Zeros,
};
use std::time::Instant;

/// Rows of a product.
const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 64, 128, 512];
/// Of SmolLM2 135M: gate and up, down; of a 1B Llama: qkv, gate and up, down.
const SHAPES: [[usize; 2]; 5] = [[3072, 576], [576, 1536], [3072, 2048], [16384, 2048], [2048, 8192]];

fn main() {
    let mut words = std::env::args().skip(1);
    let threads = words.next().and_then(|word| word.parse().ok()).unwrap_or(2);
    let isa = words.next().and_then(|word| Isa::available().into_iter().find(|isa| isa.name() == word));
    let wanted = words.next();
    for [n, k] in SHAPES {
        for (name, format) in formats().into_iter().filter(|(name, _)| wanted.as_ref().is_none_or(|word| word == name))
        {
            // Blocks of 256 do not fit all widths.
            let k = if let WeightFormat::Blocks(kind) = format { k.next_multiple_of(kind.block().elements) } else { k };
            let mut backend = CpuBackend::new(CpuOptions { threads, isa });
            let matrix = Stored::new(format, n, k);
            let w = backend.load_matrix(matrix.matrix(), DType::Bf16);
            let held = backend.held_bytes(w);
            let (x, out) = (backend.new_act(512, k), backend.new_act(512, n));
            print!("{name:8} {n:6} x {k:4} ");
            for rows in ROWS {
                let zeros = vec![0; rows];
                backend.begin(Batch { tokens: &zeros, positions: &zeros, sequences: &[] });
                backend.host_mut(x).iter_mut().enumerate().for_each(|(at, x)| *x = (at % 97) as f32 / 97.0 - 0.5);
                let seconds = time(|| backend.matmul(x, w, None, Epilogue::Store, out));
                print!("| {rows:3}: {:7.0} us {:5.1} GB/s ", seconds * 1e6, held as f64 / seconds / 1e9);
            }
            println!();
        }
    }
}

fn formats() -> Vec<(&'static str, WeightFormat)> {
    let g128 = GroupedFormat {
        bits: CodeBits::Four,
        group: 128,
        scales: DType::F16,
        levels: Levels::Integers(Zeros::Middle),
        order: ColumnOrder::InOrder,
        input: InputRounding::None,
    };
    let blocks = [
        ("Q4_0", GgmlType::Q4_0),
        ("Q4_1", GgmlType::Q4_1),
        ("Q8_0", GgmlType::Q8_0),
        ("Q2_K", GgmlType::Q2K),
        ("Q3_K", GgmlType::Q3K),
        ("Q4_K", GgmlType::Q4K),
        ("Q6_K", GgmlType::Q6K),
        ("IQ2_XS", GgmlType::Iq2Xs),
        ("IQ3_XXS", GgmlType::Iq3Xxs),
        ("IQ4_XS", GgmlType::Iq4Xs),
    ];
    let others = [("bf16", WeightFormat::Plain(DType::Bf16)), ("g128", WeightFormat::Grouped(g128))];
    others.into_iter().chain(blocks.map(|(name, kind)| (name, WeightFormat::Blocks(kind)))).collect()
}

/// A matrix of made-up codes.
struct Stored {
    format: WeightFormat,
    shape: [usize; 2],
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Stored {
    fn new(format: WeightFormat, n: usize, k: usize) -> Self {
        let codes = (0..n * format.row_bytes(k)).map(|at| 0x2c ^ (at * 37 % 13) as u8).collect();
        let scales = 0x2c00_u16.to_le_bytes().repeat(n * k.div_ceil(128));
        Self { format, shape: [n, k], codes, scales }
    }

    fn matrix(&self) -> HostMatrix<'_> {
        let [rows, cols] = self.shape;
        let encoding = match self.format {
            WeightFormat::Plain(dtype) => return HostMatrix::plain(dtype, rows, cols, &self.codes),
            WeightFormat::Blocks(kind) => Encoding::Blocks(GgmlBlocks { kind, bytes: &self.codes }),
            WeightFormat::Grouped(format) => Encoding::Grouped(GroupedCodes {
                format,
                codes: &self.codes,
                scales: &self.scales,
                zeros: &[],
                row_levels: &[],
                columns: &[],
            }),
            WeightFormat::ScaledE4m3 { .. } => unreachable!("not among the formats"),
        };
        HostMatrix { rows, cols, encoding }
    }
}

/// Seconds of one call, the best of several.
fn time(mut call: impl FnMut()) -> f64 {
    call();
    let (mut best, begin) = (f64::INFINITY, Instant::now());
    for round in 0.. {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
        if round >= 4 && begin.elapsed().as_secs_f64() > 0.1 {
            break;
        }
    }
    best
}
