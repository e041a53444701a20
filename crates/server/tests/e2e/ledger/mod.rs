//! Exports of the ledger: the example in the documentation, and damage of every kind, judged by what was damaged, by
//! `wayhold ledger verify`, and by a verifier that was written from the documentation alone.

mod damage;
mod example;
mod kinds;
mod life;
mod witness;
