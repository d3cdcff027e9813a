//! What a device allocates while a model is loaded: weights, activation buffers, KV memory, recurrent states.

use super::{
    Act, AttentionKernels, DType, ExpectedAttention, ExpectedDeltaRule, ExpertRouting, HostMatrix, KvLayer, KvShape,
    Matrix, MatrixGroup, MatrixUse, Noise, State, Table, Vector, WeightFormat,
};

/// Allocates device memory and fills it with weights. Handles stay valid for the device's life.
pub trait Load {
    /// Layers with such attention will be loaded: their kernels may be compiled in the background. Says which serve
    /// them; absent: the device has but one for all.
    ///
    /// # Errors
    /// The device was opened for kernels that are not for such layers: why.
    fn expect_attention(&mut self, expected: ExpectedAttention) -> Result<Option<AttentionKernels>, String> {
        let _ = expected;
        Ok(None)
    }

    /// Layers with such linear attention will be loaded: the same, and room for the largest step.
    fn expect_delta_rule(&mut self, expected: ExpectedDeltaRule) {
        let _ = expected;
    }

    /// Whether products take weights of this format as they are. Others have to be decoded before they are loaded.
    fn multiplies(&self, format: WeightFormat, by: MatrixUse) -> bool {
        let _ = by;
        matches!(format, WeightFormat::Plain(_))
    }

    /// Whether products of many rows with weights of this format, `cols` in a row, are faster where inputs are rounded
    /// as it says. With a 16-bit `compute` type such a device leaves those of few rows as they are.
    fn gains_by_rounding(&self, format: WeightFormat, by: MatrixUse, cols: usize, compute: DType) -> bool {
        let _ = (format, by, cols, compute);
        false
    }

    /// Takes a weight matrix into device memory, packed as the device likes. `compute` is the type that products with
    /// it compute in: with a 16-bit type the backend may round inputs to 16 bits, with `F32` it must not.
    fn load_matrix(&mut self, source: HostMatrix<'_>, compute: DType) -> Matrix {
        self.load_stack(&[source], compute)
    }

    /// [`Load::load_matrix`] for a matrix whose rows lie in several pieces, one below the other: all of one width and
    /// format.
    fn load_stack(&mut self, pieces: &[HostMatrix<'_>], compute: DType) -> Matrix;

    /// [`Load::load_stack`] for many matrices, which a device may read together where each is small.
    fn load_stacks(&mut self, stacks: &[Vec<HostMatrix<'_>>], compute: DType) -> Vec<Matrix> {
        stacks.iter().map(|pieces| self.load_stack(pieces, compute)).collect()
    }

    /// Bytes that a matrix takes as it lies in memory, with its scales and what pads it.
    fn held_bytes(&self, matrix: Matrix) -> usize;

    /// Takes a lookup table of numbers.
    fn load_table(&mut self, source: HostMatrix<'_>) -> Table;

    /// The rows of a matrix as a lookup table, in the same memory (tied embeddings).
    fn table_of(&mut self, matrix: Matrix) -> Table;

    /// Makes a weight matrix of random numbers on the device, otherwise as [`Load::load_matrix`]; absent where only the
    /// host can make them.
    fn make_matrix(&mut self, noise: Noise<'_>, compute: DType) -> Option<Matrix> {
        let _ = (noise, compute);
        None
    }

    /// The same for a lookup table.
    fn make_table(&mut self, noise: Noise<'_>) -> Option<Table> {
        let _ = noise;
        None
    }

    /// Takes a vector of f32.
    fn load_vector(&mut self, values: &[f32]) -> Vector;

    /// Makes one handle of matrices that were loaded with equal shapes, element types and compute types; they stay
    /// usable alone. `by`: what will multiply by them.
    fn group_matrices(&mut self, members: &[Matrix], by: MatrixUse) -> MatrixGroup;

    /// For latent attention whose `absorb` brings queries into the latent space and whose `restore` brings values out
    /// of it: the matrix that makes `[rest of a key | value]` of all heads from a latent vector, where the device gains
    /// by having that too. Activation buffers are there already.
    fn join_heads(&mut self, absorb: MatrixGroup, restore: MatrixGroup) -> Option<Matrix> {
        let _ = (absorb, restore);
        None
    }

    /// Allocates the routing of up to `max_rows` rows to `top_k` experts each.
    fn new_expert_routing(&mut self, max_rows: usize, top_k: usize) -> ExpertRouting;

    /// Allocates an activation buffer of up to `max_rows` rows, in f32.
    fn new_act(&mut self, max_rows: usize, width: usize) -> Act;

    /// The same for values that only feed GEMMs and attention: the backend may round them to `precision`.
    fn new_rounded_act(&mut self, max_rows: usize, width: usize, precision: DType) -> Act {
        let _ = precision;
        self.new_act(max_rows, width)
    }

    /// What numbers of such a buffer are kept as.
    fn rounded_type(&self, precision: DType) -> DType {
        let _ = precision;
        DType::F32
    }

    /// Allocates KV memory, once; it answers with table 0.
    fn new_kv(&mut self, shape: KvShape) -> KvLayer;

    /// Allocates one layer's recurrent states: `slots` rows of `len` numbers, rounded to `dtype` after each step.
    fn new_state(&mut self, slots: usize, len: usize, dtype: DType) -> State;
}
