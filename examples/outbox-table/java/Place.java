// Places an order and tells of it, in one transaction. usage: JDBC_URL=... java -cp postgresql.jar Place.java ORDER
import java.sql.*;
import java.util.UUID;

class Place {
    public static void main(String[] arguments) throws SQLException {
        String order = arguments[0];
        try (Connection connection = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            connection.setAutoCommit(false); // what is not committed when the connection closes is rolled back
            try (PreparedStatement row = connection.prepareStatement("INSERT INTO orders (id, total) VALUES (?, 1200)");
                 PreparedStatement event = connection.prepareStatement("INSERT INTO outboxevent "
                     + "(id, aggregatetype, aggregateid, type, payload) VALUES (?, 'order', ?, ?, ?::jsonb)")) {
                row.setString(1, order);
                row.executeUpdate();
                event.setObject(1, UUID.randomUUID());
                event.setString(2, order);
                event.setString(3, "com.example.order.placed");
                event.setString(4, "{\"id\": \"" + order + "\", \"total\": 1200}"); // from your JSON library
                event.executeUpdate();
            }
            connection.commit();
        }
    }
}
