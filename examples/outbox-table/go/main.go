// Places an order and tells of it, in one transaction. usage: DATABASE_URL=... go run . ORDER
package main

import (
	"context"
	"log"
	"os"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func place(ctx context.Context, tx pgx.Tx, order string, total int) error {
	if _, err := tx.Exec(ctx, "INSERT INTO orders (id, total) VALUES ($1, $2)", order, total); err != nil {
		return err
	}
	_, err := tx.Exec(ctx,
		"INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES ($1, 'order', $2, $3, $4)",
		uuid.New().String(), order, "com.example.order.placed", map[string]any{"id": order, "total": total})
	return err
}

func main() {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close(ctx)
	// Commits at its end, or rolls back.
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error { return place(ctx, tx, os.Args[1], 1200) })
	if err != nil {
		log.Fatal(err)
	}
}
