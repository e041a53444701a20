// Places an order and tells of it, in one transaction. usage: DATABASE_URL=... node place.js ORDER
import { randomUUID } from "node:crypto";
import { Client } from "pg";

async function place(client: Client, order: string, total: number): Promise<void> {
  await client.query("BEGIN");
  await client.query("INSERT INTO orders (id, total) VALUES ($1, $2)", [order, total]);
  await client.query(
    "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES ($1, 'order', $2, $3, $4)",
    [randomUUID(), order, "com.example.order.placed", JSON.stringify({ id: order, total })],
  );
  await client.query("COMMIT"); // a connection that ends before this rolls back
}

const client = new Client({ connectionString: process.env.DATABASE_URL });
client.connect().then(() => place(client, process.argv[2], 1200)).finally(() => client.end());
