"""Places an order and tells of it, in one transaction. usage: DATABASE_URL=... postgres.py ORDER"""
import json, os, sys, uuid
import psycopg

order, total = sys.argv[1], 1200
with psycopg.connect(os.environ["DATABASE_URL"]) as connection:  # commits at its end, or rolls back
    connection.execute("INSERT INTO orders (id, total) VALUES (%s, %s)", (order, total))
    connection.execute(
        "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', %s, %s, %s)",
        (uuid.uuid4(), order, "com.example.order.placed", json.dumps({"id": order, "total": total})),
    )
