"""Places an order and tells of it, in one transaction. usage: sqlite.py FILE ORDER"""
import json, sqlite3, sys, uuid

order, total = sys.argv[2], 1200
with sqlite3.connect(sys.argv[1]) as connection:  # commits at its end, or rolls back
    connection.execute("INSERT INTO orders (id, total) VALUES (?, ?)", (order, total))
    connection.execute(
        "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES (?, 'order', ?, ?, ?)",
        (str(uuid.uuid4()), order, "com.example.order.placed", json.dumps({"id": order, "total": total})),
    )
