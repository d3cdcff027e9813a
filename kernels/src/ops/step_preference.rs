//! Which steps suit a device: what a scheduler asks before it builds steps of decodes and prompt chunks.

/// Which steps suit a device with a model. A mixed step prefills prompts beside running decodes, which all wait for its
/// end: its prompt tokens are bounded by the time that it takes. Times are microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepPreference {
    /// Rows of a mixed step, decodes included, are a multiple of this.
    pub row_multiple: u32,
    /// The same from twice as many rows on.
    pub large_row_multiple: u32,
    /// Prompt tokens of a mixed step at least, however long they take.
    pub min_prefill_tokens: u32,
    /// Length of a mixed step.
    pub target_us: u32,
    /// Prompt tokens of a step of that length at most.
    pub target_prefill_tokens: u32,
    /// Up to this many decodes count as very few.
    pub few_decodes: u32,
    /// Length of a mixed step beside very few decodes.
    pub few_decodes_target_us: u32,
    /// A step may take longer for this many prompt tokens for each of its decodes.
    pub prefill_tokens_per_decode: u32,
    /// The longest mixed step with more prompt tokens than that of the target's length has at most.
    pub max_us: u32,
    /// The longest with no more.
    pub slow_max_us: u32,
}

impl StepPreference {
    /// A CPU's: rows fill tiles of 16, and steps are as long as a reader of a stream puts up with.
    pub const CPU: Self = Self {
        row_multiple: 16,
        large_row_multiple: 16,
        min_prefill_tokens: 512,
        target_us: 100_000,
        target_prefill_tokens: 6144,
        few_decodes: 12,
        few_decodes_target_us: 125_000,
        prefill_tokens_per_decode: 48,
        max_us: 150_000,
        slow_max_us: 150_000,
    };
}
