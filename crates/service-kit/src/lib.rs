//! What every Quire process needs: logging, traces, the control plane, drain, metrics.
