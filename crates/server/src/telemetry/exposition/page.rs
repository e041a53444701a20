//! A page of metrics under way: families of samples, each with its help.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::telemetry::histogram::Reading;

/// The page under way.
pub(super) struct Page<'a> {
    pub(super) encoder: DescriptorEncoder<'a>,
}

type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

impl Page<'_> {
    pub(super) fn counter<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l, N>, u64)>,
    ) -> fmt::Result {
        self.family(
            name,
            help,
            MetricType::Counter,
            samples,
            |mut metric, value| metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        )
    }

    pub(super) fn gauge<'l, const N: usize, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l, N>, V)>,
    ) -> fmt::Result {
        self.family(
            name,
            help,
            MetricType::Gauge,
            samples,
            |mut metric, value| metric.encode_gauge(&value),
        )
    }

    pub(super) fn histogram<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l, N>, Reading)>,
    ) -> fmt::Result {
        self.family(
            name,
            help,
            MetricType::Histogram,
            samples,
            |mut metric, value| {
                metric.encode_histogram::<NoLabelSet>(
                    value.sum,
                    value.count(),
                    &value.buckets,
                    None,
                )
            },
        )
    }

    fn family<'l, const N: usize, V>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels<'l, N>, V)>,
        encode: impl Fn(MetricEncoder<'_>, V) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in samples {
            encode(family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }
}
