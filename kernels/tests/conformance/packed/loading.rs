//! Matrices that are loaded together, as the experts of a layer are, against the same loaded one by one.

use super::{FORMAT, Stored};
use crate::{Random, backends, check_same, encode, filled, host, poisoned};
use kernels::e4m3;
use kernels::ops::{
    Backend, DType, Encoding, Epilogue, GroupedFormat, HostMatrix, InputRounding, Levels, Matrix, MatrixUse,
    ScaledCodes, Zeros,
};

/// Columns of all of them.
const COLS: usize = 1024;

fn products(device: &mut dyn Backend, matrices: &[Matrix], stacks: &[Vec<HostMatrix<'_>>]) -> Vec<Vec<f32>> {
    let rows = 3;
    let x = Random(5).values(rows * COLS);
    let mut product = |(matrix, stack): (&Matrix, &Vec<HostMatrix<'_>>)| {
        let n = stack.iter().map(|piece| piece.rows).sum();
        let (x, out) = (filled(device, COLS, &x), poisoned(device, rows, n));
        device.matmul(x, *matrix, None, Epilogue::Store, out);
        device.read(out).to_vec()
    };
    matrices.iter().zip(stacks).map(&mut product).collect()
}

/// Some of 1 to 4 MB, of numbers and of codes, in pieces and of the same bytes; one of 40 MB between them.
#[test]
fn matrices_loaded_together_are_those_loaded_alone() {
    let mut random = Random(3);
    let (numbers, _) = encode(&random.values(20_000 * COLS), DType::Bf16);
    let plain = |rows: std::ops::Range<usize>| {
        host(DType::Bf16, rows.len(), COLS, &numbers[rows.start * COLS * 2..rows.end * COLS * 2])
    };
    let format = GroupedFormat { levels: Levels::Integers(Zeros::Stored), ..FORMAT };
    let grouped: Vec<Stored> = (0..6).map(|number| Stored::new([1500 + number, COLS], format)).collect();
    let codes: Vec<u8> = random.values(1800 * COLS).into_iter().map(|value| e4m3::encode(value * 100.0)).collect();
    let scales: Vec<f32> = random.values(1800).into_iter().map(|value| (value.abs() + 0.1) / 300.0).collect();
    let scale_rows: Vec<u32> = (0..1800).collect();
    let scaled = |rows: usize| {
        let (codes, scale_rows) = (&codes[..rows * COLS], &scale_rows[..rows]);
        let codes = ScaledCodes { codes, scales: &scales, scale_rows, scale_cols: COLS, input: InputRounding::None };
        HostMatrix { rows, cols: COLS, encoding: Encoding::Scaled(codes) }
    };
    for mut device in backends() {
        let mut stacks: Vec<Vec<HostMatrix<'_>>> =
            (0..18).map(|number| vec![plain(number * 700..number * 700 + 5), plain(9..700 + number)]).collect();
        stacks.push(vec![plain(0..20_000)]);
        let is_packed = |matrix: &HostMatrix<'_>| device.multiplies(matrix.format(), MatrixUse::Experts);
        let packed =
            grouped.iter().map(|stored| stored.piece(0..1500)).chain([scaled(1800), scaled(1700), scaled(1800)]);
        stacks.extend(packed.filter(is_packed).map(|matrix| vec![matrix]));
        stacks.extend((0..4).map(|_| vec![plain(0..1500)]));
        let together = device.load_stacks(&stacks, DType::Bf16);
        let alone: Vec<Matrix> = stacks.iter().map(|stack| device.load_stack(stack, DType::Bf16)).collect();
        let want = products(&mut *device, &alone, &stacks);
        let got = products(&mut *device, &together, &stacks);
        for (number, (got, want)) in got.iter().zip(&want).enumerate() {
            check_same(&format!("{}: matrix {number}", device.describe()), got, want);
        }
    }
}
