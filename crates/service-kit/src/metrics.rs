//! The process's metrics, their text form, and the tables that describe them.
//!
//! A service lists its metrics in a [`metrics!`](crate::metrics!) table, one line each: field, type, name, help. The
//! table makes the struct, registers it, and can be enumerated for documents ([`Description`]).

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// A registry that tasks share; cloning shares.
#[derive(Clone, Default)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// Registers metrics at start; returns what `add` does.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.lock())
    }

    /// All metrics in OpenMetrics text, without the closing `# EOF` line, so that several processes' texts can be
    /// joined.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.lock());
        out.truncate(out.trim_end_matches("# EOF\n").len());
        out
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A metric as documents list it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name as scraped: counters end in `_total`.
    pub name: Cow<'static, str>,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels, those of the whole table first.
    pub labels: Vec<&'static str>,
    /// One sentence.
    pub help: &'static str,
}

impl Description {
    /// Of a metric of type `M`, registered as `name` under `labels`.
    pub fn of<M: Described>(name: &'static str, labels: &[&'static str], help: &'static str) -> Self {
        let name = if M::KIND == "counter" { Cow::from(format!("{name}_total")) } else { name.into() };
        Self { name, kind: M::KIND, labels: [labels, M::LABELS].concat(), help }
    }
}

/// A type of metric that tables may hold.
pub trait Described {
    /// `counter`, `gauge` or `histogram`.
    const KIND: &'static str;
    /// Labels of its series beside those of the table.
    const LABELS: &'static [&'static str] = &[];
}

impl Described for Counter {
    const KIND: &'static str = "counter";
}

impl Described for Counter<f64, AtomicU64> {
    const KIND: &'static str = "counter";
}

impl Described for Gauge {
    const KIND: &'static str = "gauge";
}

impl Described for Gauge<f64, AtomicU64> {
    const KIND: &'static str = "gauge";
}

impl Described for Histogram {
    const KIND: &'static str = "histogram";
}

impl<S: LabelNames, M: Described, C> Described for Family<S, M, C> {
    const KIND: &'static str = M::KIND;
    const LABELS: &'static [&'static str] = S::NAMES;
}

/// A set of labels whose names are known; made by [`labels!`](crate::labels!).
pub trait LabelNames {
    /// In order of their fields.
    const NAMES: &'static [&'static str];
}

/// Brings a counter up to a total that only grows.
pub fn raise(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// The part of the registry with these labels, whose values are among `values`.
///
/// # Panics
/// When a value is missing, which is a bug of the table's owner.
#[doc(hidden)]
pub fn labelled<'r>(
    registry: &'r mut Registry,
    labels: &[&'static str],
    values: &[(&'static str, &str)],
) -> &'r mut Registry {
    let value = |label: &&'static str| {
        let found = values.iter().find(|(name, _)| name == label);
        let (name, value) = found.unwrap_or_else(|| panic!("a value of the label {label}"));
        (Cow::from(*name), Cow::from((*value).to_owned()))
    };
    match labels {
        [] => registry,
        labels => registry.sub_registry_with_labels(labels.iter().map(value)),
    }
}

/// Declares sets of labels: structs whose fields are the labels' names.
#[macro_export]
macro_rules! labels {
    ($($(#[$doc:meta])* $vis:vis struct $set:ident {
        $($(#[$label_doc:meta])* $label:ident: $type:ty),* $(,)?
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, ::prometheus_client::encoding::EncodeLabelSet)]
        $vis struct $set {
            $($(#[$label_doc])* $label: $type),*
        }

        impl $crate::metrics::LabelNames for $set {
            const NAMES: &'static [&'static str] = &[$(stringify!($label)),*];
        }
    )*};
}

/// Declares a table of metrics: a struct whose fields are one line each, in blocks that share labels.
///
/// ```
/// use prometheus_client::metrics::{counter::Counter, histogram::Histogram};
///
/// service_kit::metrics! {
///     /// A service's metrics.
///     struct Table {
///         by ["rank"] {
///             steps: Counter, "quire:example_steps", "Steps executed";
///             seconds: Histogram = Histogram::new([0.1, 1.0]), "quire:example_seconds", "Time of a step";
///         }
///     }
/// }
///
/// let metrics = service_kit::metrics::Metrics::default();
/// let table = metrics.register(|registry| Table::register(registry, &[("rank", "0")]));
/// table.steps.inc();
/// table.seconds.observe(0.5);
/// assert!(metrics.text().contains("quire:example_steps_total{rank=\"0\"} 1"));
/// assert_eq!(Table::descriptions()[0].name, "quire:example_steps_total");
/// ```
#[macro_export]
macro_rules! metrics {
    ($(#[$doc:meta])* $vis:vis struct $table:ident {
        $(by [$($label:literal),*] {
            $($field:ident: $type:ty $(= $new:expr)?, $name:literal, $help:literal;)*
        })*
    }) => {
        $(#[$doc])*
        #[derive(Clone)]
        $vis struct $table {
            $($(#[doc = $help] $vis $field: $type,)*)*
        }

        impl $table {
            /// Creates the metrics and registers them under labels with these values.
            $vis fn register(
                registry: &mut ::prometheus_client::registry::Registry,
                values: &[(&'static str, &str)],
            ) -> Self {
                let table = Self { $($($field: $crate::metrics!(@new $($new)?),)*)* };
                $({
                    let registry = $crate::metrics::labelled(registry, &[$($label),*], values);
                    $(registry.register($name, $help, table.$field.clone());)*
                })*
                table
            }

            /// Every metric of the table.
            $vis fn descriptions() -> ::std::vec::Vec<$crate::metrics::Description> {
                let mut all = ::std::vec::Vec::new();
                $({
                    let labels: &[&'static str] = &[$($label),*];
                    $(all.push($crate::metrics::Description::of::<$type>($name, labels, $help));)*
                })*
                all
            }
        }
    };
    (@new) => { ::core::default::Default::default() };
    (@new $new:expr) => { $new };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::labels! {
        struct Reason {
            reason: &'static str,
        }
    }

    crate::metrics! {
        struct Table {
            by [] {
                tokens: Counter, "vllm:prompt_tokens", "Prompt tokens";
            }
            by ["model", "engine"] {
                seconds: Histogram = Histogram::new([1.0]), "quire:seconds", "Time";
                refused: Family<Reason, Counter>, "quire:refused", "Refusals";
            }
        }
    }

    fn table(metrics: &Metrics) -> Table {
        metrics.register(|registry| Table::register(registry, &[("engine", "0"), ("model", "m")]))
    }

    #[test]
    fn text_has_no_end_mark() {
        let metrics = Metrics::default();
        let table = table(&metrics);
        table.tokens.inc_by(3);
        table.seconds.observe(0.5);
        let text = metrics.text();
        assert!(text.contains("vllm:prompt_tokens_total 3\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn a_table_describes_what_it_registers() {
        let metrics = Metrics::default();
        table(&metrics).refused.get_or_create(&Reason { reason: "full" }).inc();
        let text = metrics.text();
        for Description { name, kind, help, .. } in Table::descriptions() {
            let family = name.trim_end_matches("_total");
            assert!(text.contains(&format!("# HELP {family} {help}.\n# TYPE {family} {kind}\n")), "{name}: {text}");
        }
        assert!(text.contains("quire:refused_total{model=\"m\",engine=\"0\",reason=\"full\"} 1"), "{text}");
        assert_eq!(Table::descriptions()[2].labels, ["model", "engine", "reason"]);
    }

    #[test]
    fn counters_follow_totals_that_grow() {
        let counter = Counter::default();
        raise(&counter, 5);
        raise(&counter, 5);
        raise(&counter, 3);
        assert_eq!(counter.get(), 5);
    }
}
